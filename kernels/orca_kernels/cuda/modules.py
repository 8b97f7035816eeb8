"""The CUDA sources as modules: one compilation for each element type (and head dimension), launched through CuPy.

CuPy is imported only here, and only when a module is asked for. It compiles with NVRTC and keeps the result in its own
cache; kernels run on torch's current stream and on torch's memory.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import torch

SOURCES = Path(__file__).parent
ELEMENTS = {torch.float32: 32, torch.float16: 16, torch.bfloat16: 160}
"""ORCA_ELEMENT of element.cuh."""
SHARED_BYTES = 48 << 10
"""Shared memory that a thread block may declare on every device."""


class Launcher(Protocol):
    """Runs kernels by name."""

    def launch(
        self,
        source: str,
        definitions: tuple[tuple[str, int], ...],
        name: str,
        grid: tuple[int, int, int],
        threads: int,
        arguments: Sequence[Any],
    ) -> None:
        """Launches `name` of `source`, compiled with `definitions`; arguments are tensors and ctypes values."""


def program(source: str) -> str:
    """Returns a source with what it includes, so that a compiler needs no path."""
    text = (SOURCES / source).read_text(encoding="utf-8")
    return text.replace('#include "element.cuh"', (SOURCES / "element.cuh").read_text(encoding="utf-8"))


def supports(dtype: torch.dtype, head_dim: int) -> bool:
    """Whether attention's shared memory suffices (attention.cu: keys, values, queries, scores)."""
    if dtype not in ELEMENTS or head_dim % 16:
        return False
    tile = 64 if dtype.itemsize * head_dim <= 256 else 32
    return 2 * tile * head_dim * dtype.itemsize + 4 * rows_of_tile(head_dim) * (head_dim + tile) <= SHARED_BYTES


def rows_of_tile(head_dim: int) -> int:
    """kRows of attention.cu."""
    return 8 if head_dim > 128 else 16


class CupyLauncher:
    """A `Launcher` for the current CUDA device. Raises ImportError without CuPy."""

    def __init__(self) -> None:
        import cupy

        self._cupy = cupy
        self._functions: dict[tuple[str, tuple[tuple[str, int], ...], str], Any] = {}

    def launch(
        self,
        source: str,
        definitions: tuple[tuple[str, int], ...],
        name: str,
        grid: tuple[int, int, int],
        threads: int,
        arguments: Sequence[Any],
    ) -> None:
        """See Launcher."""
        key = (source, definitions, name)
        if key not in self._functions:
            options = ("--std=c++17", *(f"-D{macro}={value}" for macro, value in definitions))
            module = self._cupy.RawModule(code=program(source), options=options)
            self._functions[key] = module.get_function(name)
        stream = self._cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream)
        with stream:
            self._functions[key](grid, (threads,), tuple(map(_argument, arguments)))


def _argument(value: Any) -> Any:
    """CuPy takes pointers and numbers as NumPy scalars of the width that the kernel has."""
    import numpy as np

    if isinstance(value, torch.Tensor):
        return np.uintp(value.data_ptr())
    return np.float32(value.value) if isinstance(value, ctypes.c_float) else np.int64(value.value)
