"""A `Launcher` that runs the CUDA kernels on the CPU, thread by thread (cuda_emulation.h)."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from orca_kernels.cuda.modules import Grid, Kernel, program

KERNELS = {
    "rows.cu": ("layer_norm", "rms_norm", "silu_and_multiply", "rotate", "store"),
    "attention.cu": ("attention",),
    "tensor_core_attention.cu": ("attention", "store"),
    "merge.cu": ("merge",),
}


class EmulatedLauncher:
    """Compiles each source for the CPU when it is first used."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._libraries: dict[str, ctypes.CDLL] = {}

    def launch(self, kernel: Kernel, grid: Grid, threads: int, arguments: Sequence[Any]) -> None:
        """See Launcher."""
        stem = "".join([kernel.source, *kernel.macros])
        if stem not in self._libraries:
            self._libraries[stem] = self._build(stem, kernel)
        values = [
            ctypes.c_void_p(argument.data_ptr()) if isinstance(argument, torch.Tensor) else argument
            for argument in arguments
        ]
        pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        getattr(self._libraries[stem], f"emulate_{kernel.name}")(*grid, threads, pointers)

    def _build(self, stem: str, kernel: Kernel) -> ctypes.CDLL:
        text = self._folder / f"{stem}.cpp"
        wrappers = "\n".join(f"ORCA_EMULATE(orca_{name})" for name in KERNELS[kernel.source])
        header = Path(__file__).with_name("cuda_emulation.h").read_text()
        text.write_text(f"{header}\n{program(kernel.source)}\n{wrappers}\n".replace("#pragma once", ""))
        library = text.with_suffix(".so")
        command = ["c++", "-std=c++17", "-O1", "-shared", "-fPIC", "-DORCA_EMULATED", *kernel.macros, str(text)]
        subprocess.run([*command, "-o", str(library)], check=True, capture_output=True, text=True, timeout=120)
        return ctypes.CDLL(str(library))
