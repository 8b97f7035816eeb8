"""The CPU kernels with emulated AMX tiles (emulated_tiles.h), for processors that have none."""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path

from orca_kernels.cpu.library import FLAGS, SOURCES, CpuLibrary, file_name, level_options
from orca_kernels.cpu.targets import CpuTarget

from support.once import cache_folder, once

HEADER = Path(__file__).with_suffix(".h")
"""Replaces the compiler's intrinsics for tiles."""


def compile_with_tiles(source: Path, level: str, path: Path) -> None:
    """Compile a library that uses tiles for a level of a processor that has none."""
    command = ["c++", *FLAGS, *level_options(level), "-include", str(HEADER), str(source), "-o", str(path)]
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)


def emulated_library(target: CpuTarget) -> CpuLibrary:
    """Return the library for `target`, a target of this processor, which multiplies bfloat16 on emulated tiles.

    The emulation takes long, so the measurement would choose other products.
    """
    digest = hashlib.sha256(HEADER.read_bytes()).hexdigest()[:16]
    path = cache_folder() / "emulated-tiles" / f"{digest}-{file_name(target.level)}"

    def compile_to(part: Path) -> None:
        compile_with_tiles(SOURCES / "kernels.cpp", target.level, part)

    library = CpuLibrary(once(path, compile_to), target)
    library.tiles = True
    return library
