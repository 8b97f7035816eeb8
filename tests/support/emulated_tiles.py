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
OPTIMISATION = "-O1"
"""Compiles in half the time of FLAGS' -O3; the tests multiply small matrices."""


def compile_with(header: Path, source: Path, level: str, path: Path) -> None:
    """Compile a library for a level of a processor that lacks the instructions which `header` emulates."""
    options = [*FLAGS, OPTIMISATION, *level_options(level), "-include", str(header), "-o", str(path)]
    subprocess.run(["c++", *options, str(source)], check=True, capture_output=True, text=True, timeout=120)


def compiled(header: Path, level: str) -> Path:
    """Return the CPU kernels' library with an emulation, compiled by the first caller on this machine."""
    digest = hashlib.sha256(header.read_bytes() + OPTIMISATION.encode()).hexdigest()[:16]
    path = cache_folder() / header.stem.replace("_", "-") / f"{digest}-{file_name(level)}"
    return once(path, lambda part: compile_with(header, SOURCES / "kernels.cpp", level, part))


def emulated_library(target: CpuTarget) -> CpuLibrary:
    """Return the library for `target`, a target of this processor, which multiplies bfloat16 on emulated tiles.

    The emulation takes long, so the measurement would choose other products.
    """
    library = CpuLibrary(compiled(HEADER, target.level), target)
    library.tiles = True
    return library
