"""A `Launcher` that runs the CUDA kernels on the CPU, thread by thread (cuda_emulation.h)."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from orca_kernels.cuda.modules import program

KERNELS = {
    "rows.cu": ("layer_norm", "rms_norm", "silu_and_multiply", "rotate", "store"),
    "attention.cu": ("attention", "merge"),
}


class EmulatedLauncher:
    """Compiles each source for the CPU when it is first used."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._libraries: dict[tuple[str, tuple[tuple[str, int], ...]], ctypes.CDLL] = {}

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
        library = self._libraries.get((source, definitions))
        if library is None:
            library = self._libraries[source, definitions] = self._build(source, definitions)
        values = [
            ctypes.c_void_p(argument.data_ptr()) if isinstance(argument, torch.Tensor) else argument
            for argument in arguments
        ]
        pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        getattr(library, f"emulate_{name}")(*grid, threads, pointers)

    def _build(self, source: str, definitions: tuple[tuple[str, int], ...]) -> ctypes.CDLL:
        stem = "-".join([source, *(f"{value}" for _, value in definitions)])
        text = self._folder / f"{stem}.cpp"
        wrappers = "\n".join(f"ORCA_EMULATE(orca_{name})" for name in KERNELS[source])
        header = Path(__file__).with_name("cuda_emulation.h").read_text()
        text.write_text(f"{header}\n{program(source)}\n{wrappers}\n".replace("#pragma once", ""))
        library = text.with_suffix(".so")
        macros = ["-DORCA_EMULATED", *(f"-D{name}={value}" for name, value in definitions)]
        command = ["c++", "-std=c++17", "-O1", "-shared", "-fPIC", *macros, str(text), "-o", str(library)]
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
        return ctypes.CDLL(str(library))
