"""The CUDA sources as modules, compiled per element type (and head dimension) by CuPy and launched on torch's stream.

Only CupyLauncher imports CuPy, which compiles with NVRTC and caches the result, and cuda.bindings, which torch's builds
for CUDA bring: a launch through it takes less of the host's time than one through CuPy. Kernels run on torch's current
stream and memory.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from orca_kernels.cuda.arguments import pack

SOURCES = Path(__file__).parent
ELEMENTS = {torch.float32: 32, torch.float16: 16, torch.bfloat16: 160}
"""Values of the macro ORCA_ELEMENT in element.cuh."""
OPTIONS = ("--std=c++17",)
"""Options of the compiler, besides a kernel's macros."""
TENSOR_CORES = "tensor_core_attention.cu"
"""Source of attention for 16-bit elements, which has its own order of keys and values in a block."""

ROWS = "rows.cu"
"""Source of the operations on single rows."""

Grid = tuple[int, int, int]
"""Thread blocks in x, y and z."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """A function of a source, compiled for one element type and, for attention, one head dimension."""

    source: str
    name: str
    dtype: torch.dtype
    head_dim: int | None = None

    @property
    def macros(self) -> tuple[str, ...]:
        """Macro definitions for the compiler's command line."""
        element = f"-DORCA_ELEMENT={ELEMENTS[self.dtype]}"
        return (element,) if self.head_dim is None else (element, f"-DORCA_HEAD_DIM={self.head_dim}")


class Launcher(Protocol):
    """Runs kernels on a device."""

    @property
    def multiprocessors(self) -> int:
        """Multiprocessors of the device."""

    def launch(self, kernel: Kernel, grid: Grid, threads: int, arguments: Sequence[Any]) -> None:
        """Launch thread blocks of `threads` threads; arguments are tensors and ctypes values."""


def program(source: str) -> str:
    """Return a source with its includes expanded, each file once, so that the compiler needs no include path."""
    included: set[str] = set()

    def expanded(name: str) -> str:
        if name in included:
            return ""
        included.add(name)
        text = (SOURCES / name).read_text(encoding="utf-8")
        return re.sub(r'#include "(\w+\.cuh)"', lambda include: expanded(include[1]), text)

    return expanded(source)


def attention_source(dtype: torch.dtype, head_dim: int) -> str | None:
    """Return the source of attention for this element type and head dimension, None if unsupported."""
    if head_dim % 16 or head_dim > 256:
        return None
    return "attention.cu" if dtype == torch.float32 else TENSOR_CORES


def rows_of_tile(source: str, head_dim: int) -> int:
    """Return the rows per thread block: a row is a token and a query head that shares the key/value head."""
    if source == TENSOR_CORES:
        return 64
    return 8 if head_dim > 128 else 16


def resident_blocks(head_dim: int) -> int:
    """Return the thread blocks of attention that a multiprocessor holds: kResident in tensor_core_attention.cu."""
    return 2 if head_dim > 128 else 3


class CupyLauncher:
    """A `Launcher` for the current CUDA device. Raises ImportError without CuPy."""

    def __init__(self) -> None:
        import cupy

        self._cupy = cupy
        self._driver = _driver()
        self._functions: dict[Kernel, Any] = {}

    @property
    def multiprocessors(self) -> int:
        """See Launcher."""
        return torch.cuda.get_device_properties(torch.cuda.current_device()).multi_processor_count

    def launch(self, kernel: Kernel, grid: Grid, threads: int, arguments: Sequence[Any]) -> None:
        """See Launcher. Raises RuntimeError with the driver's error if the launch fails."""
        function = self._functions.get(kernel) or self._load(kernel)
        stream = torch.cuda.current_stream().cuda_stream
        if self._driver is None:
            with self._cupy.cuda.ExternalStream(stream):
                function(grid, (threads,), tuple(map(_argument, arguments)))
            return
        packed = pack(arguments)
        (error,) = self._driver.cuLaunchKernel(function, *grid, threads, 1, 1, 0, stream, packed.address, 0)
        if error:
            raise RuntimeError(f"{kernel.name} was not launched: {error.name}")

    def _load(self, kernel: Kernel) -> Any:
        module = self._cupy.RawModule(code=program(kernel.source), options=(*OPTIONS, *kernel.macros))
        function = module.get_function(kernel.name)
        if self._driver is not None:
            function = self._driver.CUfunction(function.kernel.ptr)
        self._functions[kernel] = function
        return function


def _driver() -> Any | None:
    """Return the driver's interface, None without the package `cuda.bindings`."""
    try:
        from cuda.bindings import driver
    except ImportError:
        return None
    return driver


def _argument(value: Any) -> Any:
    """Convert an argument to the form that CuPy expects: a NumPy scalar of the width of the kernel's parameter."""
    import numpy as np

    if isinstance(value, torch.Tensor):
        return np.uintp(value.data_ptr())
    if isinstance(value, ctypes.c_int):
        return np.int32(value.value)
    return np.float32(value.value) if isinstance(value, ctypes.c_float) else np.int64(value.value)
