"""Baselines: schedulers of the paper's sections 2, 3 and 7, on ORCA's engine and kernels."""
