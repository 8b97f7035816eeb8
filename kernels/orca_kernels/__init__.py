"""The fused kernels behind one interface (`orca_kernels.interface.Kernels`)."""
