"""Cubins of the CUDA kernels, which this machine keeps for the next run, and their disassembly."""

from __future__ import annotations

import hashlib
import re
import subprocess
from functools import cache
from importlib.metadata import files, version
from pathlib import Path

from cuda_resources import CUPY_OPTIONS, cubin
from orca_kernels.cuda.modules import OPTIONS, Kernel, program

from support.once import cache_folder, once


def cubin_file(kernel: Kernel, architecture: str) -> Path:
    """Return the cubin of a kernel's source."""
    inputs = (version("nvidia-cuda-nvrtc"), *OPTIONS, *kernel.macros, *CUPY_OPTIONS, architecture)
    digest = hashlib.sha256("\n".join([*inputs, program(kernel.source)]).encode()).hexdigest()[:16]
    path = cache_folder() / "cubins" / f"{digest}.cubin"
    return once(path, lambda part: part.write_bytes(cubin(kernel, architecture)) and None)


def cubin_bytes(kernel: Kernel, architecture: str) -> bytes:
    """Return the content of `cubin_file`."""
    return cubin_file(kernel, architecture).read_bytes()


def instructions(kernel: Kernel, architecture: str) -> list[str]:
    """Return the names of a function's instructions in their order, such as LDS.128."""
    names = re.findall(
        r"^\s+/\*[0-9a-f]+\*/\s+(?:@!?\w+\s+)?([A-Z][A-Z0-9_.a-z:]*)", _code(kernel, architecture), re.MULTILINE
    )
    return list(names)


def subroutines(kernel: Kernel, architecture: str) -> set[str]:
    """Return the names of the compiler's subroutines that a function contains, such as __cuda_sm20_div_s64."""
    return set(re.findall(r"__cuda_sm\w+", _code(kernel, architecture)))


@cache
def _code(kernel: Kernel, architecture: str) -> str:
    """Return the disassembly of a function."""
    listing = _listing(cubin_file(kernel, architecture))
    (code,) = re.findall(rf"^\.text\.{kernel.name}:\n(.*?)(?=^\.text\.|\Z)", listing, re.DOTALL | re.MULTILINE)
    return str(code)


@cache
def _listing(path: Path) -> str:
    """Return the disassembly of all functions of a cubin."""
    (program_file,) = [file.locate() for file in files("nvidia-cuda-nvdisasm") or [] if file.name == "nvdisasm"]
    command = [str(program_file), "--print-code", path]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout
