"""Which kernels a device gets: the fused ones where they can be had, else the reference."""

from __future__ import annotations

import logging

import torch

from orca_kernels.interface import Kernels
from orca_kernels.reference import ReferenceKernels

logger = logging.getLogger(__name__)


def kernels_for(device: torch.device) -> Kernels:
    """Returns the fastest kernels that work on `device`; says in one log line if those are the plain ones."""
    if device.type == "cpu":
        from orca_kernels.cpu.kernels import CpuKernels
        from orca_kernels.cpu.library import BuildError, load

        try:
            return CpuKernels(load())
        except BuildError as error:
            logger.warning("no fused kernels on this CPU, plain torch instead: %s", error)
    elif device.type == "cuda":
        from orca_kernels.cuda.kernels import CudaKernels
        from orca_kernels.cuda.modules import CupyLauncher

        if torch.cuda.get_device_capability(device) < (8, 0):
            logger.warning("no fused kernels for a GPU older than Ampere, plain torch instead")
            return ReferenceKernels()
        try:
            return CudaKernels(CupyLauncher())
        except ImportError as error:
            logger.warning("no fused kernels on this GPU, plain torch instead: %s", error)
    return ReferenceKernels()
