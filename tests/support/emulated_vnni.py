"""The CPU kernels with an emulation of AVX-VNNI (emulated_vnni.h), for processors that have AVX2 only."""

from __future__ import annotations

from pathlib import Path

from orca_kernels.cpu.library import CpuLibrary
from orca_kernels.cpu.targets import CpuTarget

from support.emulated_tiles import compiled

HEADER = Path(__file__).with_suffix(".h")
"""Replaces the compiler's intrinsic."""


def avx_vnni_library(target: CpuTarget) -> CpuLibrary:
    """Return the library for `target`, a target with AVX2 only, which multiplies bytes by the emulated instruction."""
    library = CpuLibrary(compiled(HEADER, target.level), target)
    library.vnni = True
    return library
