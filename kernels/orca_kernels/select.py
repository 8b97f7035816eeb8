"""Chooses the kernels for a device: fused kernels if they can be built, otherwise the reference."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import torch

from orca_kernels.interface import AttentionBackendError, Kernels
from orca_kernels.reference import ReferenceKernels

if TYPE_CHECKING:
    from orca_kernels.cuda.attention_library import AttentionChoice

logger = logging.getLogger(__name__)


def kernels_for(device: torch.device, dtype: torch.dtype, choice: AttentionChoice | None = None) -> Kernels:
    """Return the fastest kernels for a model of `dtype` on `device`; log a warning if they are the reference.

    `choice`: the attention of a GPU (cuda/attention_library.py), None for that of ORCA's kernels. Raises
    AttentionBackendError if it demands what the GPU cannot have; so may `Kernels.attention`.
    """
    if device.type == "cpu":
        return _cpu_kernels(dtype)
    return _cuda_kernels(device, dtype, choice) if device.type == "cuda" else ReferenceKernels()


def _cpu_kernels(dtype: torch.dtype) -> Kernels:
    from orca_kernels.cpu.kernels import NAMES, CpuKernels
    from orca_kernels.cpu.library import BuildError, load

    if dtype not in NAMES:
        logger.warning("no fused kernels for %s on this CPU, using plain torch", str(dtype).removeprefix("torch."))
        return ReferenceKernels()
    try:
        return CpuKernels(load(), dtype)
    except BuildError as error:
        logger.warning("no fused kernels on this CPU, using plain torch: %s", error)
        return ReferenceKernels()


def _cuda_kernels(device: torch.device, dtype: torch.dtype, choice: AttentionChoice | None) -> Kernels:
    from orca_kernels.cuda.attention_library import attention_library
    from orca_kernels.cuda.kernels import CudaKernels
    from orca_kernels.cuda.modules import CupyLauncher

    major, minor = torch.cuda.get_device_capability(device)
    if major < 8:
        return _plain_torch("no fused kernels for a GPU older than Ampere", choice)
    library = None if choice is None else attention_library(choice, (major, minor), device)
    try:
        kernels = CudaKernels(CupyLauncher(), f"CUDA sm_{major}{minor}", library)
        # Loads NVRTC and launches a kernel. CuPy's errors have no common base class.
        kernels.silu_and_multiply(torch.zeros((1, 2), dtype=dtype, device=device))
        torch.cuda.synchronize(device)
        return kernels
    except Exception as error:
        return _plain_torch("no fused kernels on this GPU", choice, error)


def _plain_torch(problem: str, choice: AttentionChoice | None, error: Exception | None = None) -> Kernels:
    """Return the reference with a warning; raise AttentionBackendError if a choice demands an attention."""
    if choice is not None and choice.backend != "auto":
        if error is None:
            raise AttentionBackendError(problem)
        raise AttentionBackendError.caused_by(problem, error) from error
    cause = "" if error is None else f": {type(error).__name__}: {error}"
    logger.warning("%s, using plain torch%s", problem, cause)
    return ReferenceKernels()
