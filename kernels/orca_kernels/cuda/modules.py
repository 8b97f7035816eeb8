"""The CUDA sources as modules: one compilation for each element type (and head dimension), launched through CuPy.

CuPy is imported only here, and only when a module is asked for. It compiles with NVRTC and keeps the result in its own
cache; kernels run on torch's current stream and on torch's memory.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

SOURCES = Path(__file__).parent
ELEMENTS = {torch.float32: 32, torch.float16: 16, torch.bfloat16: 160}
"""ORCA_ELEMENT of element.cuh."""
TENSOR_CORES = "tensor_core_attention.cu"
"""The source of attention for 16-bit elements, which keeps keys and values in an order of its own."""

Grid = tuple[int, int, int]
"""Thread blocks in x, y and z."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """A function of a source, compiled for one element type and, in sources of attention, one head dimension."""

    source: str
    name: str
    dtype: torch.dtype
    head_dim: int | None = None

    @property
    def macros(self) -> tuple[str, ...]:
        """What the source is compiled with, for a compiler's command line."""
        element = f"-DORCA_ELEMENT={ELEMENTS[self.dtype]}"
        return (element,) if self.head_dim is None else (element, f"-DORCA_HEAD_DIM={self.head_dim}")


class Launcher(Protocol):
    """Runs kernels on a device."""

    def launch(self, kernel: Kernel, grid: Grid, threads: int, arguments: Sequence[Any]) -> None:
        """Launch thread blocks of `threads` threads; arguments are tensors and ctypes values."""


def program(source: str) -> str:
    """Return a source with what it includes, so that a compiler needs no path."""
    text = (SOURCES / source).read_text(encoding="utf-8")
    return re.sub(r'#include "(\w+\.cuh)"', lambda found: program(found[1]), text)


def attention_source(dtype: torch.dtype, head_dim: int) -> str | None:
    """Return the source that computes attention for this element type and head dimension, None if none can."""
    if head_dim % 16 or head_dim > 256:
        return None
    return "attention.cu" if dtype == torch.float32 else TENSOR_CORES


def rows_of_tile(source: str, head_dim: int) -> int:
    """Rows of a thread block: a row is a token and a query head that shares the key/value head."""
    if source == TENSOR_CORES:
        return 64
    return 8 if head_dim > 128 else 16


class CupyLauncher:
    """A `Launcher` for the current CUDA device. Raises ImportError without CuPy."""

    def __init__(self) -> None:
        import cupy

        self._cupy = cupy
        self._functions: dict[Kernel, Any] = {}

    def launch(self, kernel: Kernel, grid: Grid, threads: int, arguments: Sequence[Any]) -> None:
        """See Launcher."""
        if kernel not in self._functions:
            module = self._cupy.RawModule(code=program(kernel.source), options=("--std=c++17", *kernel.macros))
            self._functions[kernel] = module.get_function(kernel.name)
        stream = self._cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream)
        with stream:
            self._functions[kernel](grid, (threads,), tuple(map(_argument, arguments)))


def _argument(value: Any) -> Any:
    """CuPy takes pointers and numbers as NumPy scalars of the width that the kernel has."""
    import numpy as np

    if isinstance(value, torch.Tensor):
        return np.uintp(value.data_ptr())
    return np.float32(value.value) if isinstance(value, ctypes.c_float) else np.int64(value.value)
