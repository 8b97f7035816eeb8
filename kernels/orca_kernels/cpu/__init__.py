"""CPU kernels: C++ sources in this folder, built with the system's compiler (library.py), called from kernels.py."""
