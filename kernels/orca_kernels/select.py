"""Chooses the kernels for a device: fused kernels if they can be built, otherwise the reference."""

from __future__ import annotations

import logging

import torch

from orca_kernels.interface import Kernels
from orca_kernels.reference import ReferenceKernels

logger = logging.getLogger(__name__)


def kernels_for(device: torch.device, dtype: torch.dtype) -> Kernels:
    """Return the fastest kernels for a model of `dtype` on `device`; log a warning if they are the reference."""
    if device.type == "cpu":
        from orca_kernels.cpu.kernels import NAMES, CpuKernels
        from orca_kernels.cpu.library import BuildError, load

        if dtype not in NAMES:
            logger.warning("no fused kernels for %s on this CPU, using plain torch", str(dtype).removeprefix("torch."))
            return ReferenceKernels()
        try:
            return CpuKernels(load(), dtype)
        except BuildError as error:
            logger.warning("no fused kernels on this CPU, using plain torch: %s", error)
    elif device.type == "cuda":
        from orca_kernels.cuda.kernels import CudaKernels
        from orca_kernels.cuda.modules import CupyLauncher

        major, minor = torch.cuda.get_device_capability(device)
        if major < 8:
            logger.warning("no fused kernels for a GPU older than Ampere, using plain torch")
            return ReferenceKernels()
        try:
            kernels = CudaKernels(CupyLauncher(), f"CUDA sm_{major}{minor}")
            # Loads NVRTC and launches a kernel. CuPy's errors have no common base class.
            kernels.silu_and_multiply(torch.zeros((1, 2), dtype=dtype, device=device))
            torch.cuda.synchronize(device)
            return kernels
        except Exception as error:
            logger.warning("no fused kernels on this GPU, using plain torch: %s: %s", type(error).__name__, error)
    return ReferenceKernels()
