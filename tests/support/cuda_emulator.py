"""A `Launcher` that emulates CUDA kernels on the CPU, thread by thread (cuda_emulation.h), and reports their faults."""

from __future__ import annotations

import ctypes
import hashlib
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from orca_kernels.cuda.arguments import pack
from orca_kernels.cuda.modules import Grid, Kernel, program

from support.once import cache_folder, once

KERNELS = {
    "rows.cu": ("layer_norm", "rms_norm", "rms_norm_plus_one", "silu_and_multiply", "rotate"),
    "attention.cu": ("attention", "store", "rotate_and_store"),
    "tensor_core_attention.cu": ("attention", "store", "rotate_and_store"),
    "merge.cu": ("merge",),
    "sampling.cu": ("note", "sample"),
    "plan.cu": ("plan",),
}
COMMAND = (
    "c++", "-std=c++17", "-O1", "-shared", "-fPIC", "-U_FORTIFY_SOURCE", "-fno-strict-aliasing", "-DORCA_EMULATED",
    "-ffp-contract=off",
    "-fsanitize=undefined", "-fno-sanitize=integer-divide-by-zero", "-fsanitize-undefined-trap-on-error",
)  # fmt: skip
"""Undefined behaviour executes a trap instruction, which the emulation reports. A fortified longjmp would abort,
because fibers change stacks. Products and sums are joined only where the sources call fmaf."""


HEADER = Path(__file__).with_name("cuda_emulation.h")


class EmulationError(Exception):
    """A kernel faulted; the message has the kernel, the fault, the thread and the thread block."""


class EmulatedLauncher:
    """Compiles each source for the CPU on first use; `folder` caches the libraries."""

    multiprocessors = 1
    """So few that a thread block has several entries of a work list."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder or cache_folder() / "emulated-kernels"
        self._libraries: dict[str, ctypes.CDLL] = {}

    def launch(self, kernel: Kernel, grid: Grid, threads: int, arguments: Sequence[Any]) -> None:
        """See Launcher. Raises EmulationError if the kernel faults."""
        stem = "".join([kernel.source, *kernel.macros])
        if stem not in self._libraries:
            self._libraries[stem] = self._build(stem, kernel)
        packed = pack(arguments)
        emulate = getattr(self._libraries[stem], f"emulate_{kernel.name}")
        emulate.restype = ctypes.c_char_p
        fault = emulate(*grid, threads, ctypes.c_void_p(packed.address))
        if fault is not None:
            raise EmulationError(f"{kernel.name}: {fault.decode()}")

    def _build(self, stem: str, kernel: Kernel) -> ctypes.CDLL:
        wrappers = "\n".join(f"ORCA_EMULATE(orca_{name})" for name in KERNELS[kernel.source])
        text = f"{HEADER.read_text()}\n{program(kernel.source)}\n{wrappers}\n".replace("#pragma once", "")
        command = [*COMMAND, *kernel.macros, "-x", "c++", "-", "-o"]

        def compile_to(path: Path) -> None:
            subprocess.run([*command, path], input=text, check=True, capture_output=True, text=True, timeout=120)

        digest = hashlib.sha256("\n".join([*command, text]).encode()).hexdigest()[:16]
        return ctypes.CDLL(str(once(self._folder / f"{stem}-{digest}.so", compile_to)))
