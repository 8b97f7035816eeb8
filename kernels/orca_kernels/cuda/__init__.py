"""The CUDA kernels: C++ beside this file, compiled for the device at run time (modules.py), launched by kernels.py."""
