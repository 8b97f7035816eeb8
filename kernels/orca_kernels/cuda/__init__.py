"""CUDA kernels: sources in this folder, compiled for the device at run time (modules.py), launched by kernels.py."""
