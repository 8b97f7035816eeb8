"""The CPU kernels: C++ beside this file, built with the compiler that is there (library.py), called from kernels.py."""
