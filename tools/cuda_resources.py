"""Writes docs/reference/cuda-kernels.md: what the CUDA kernels need of a multiprocessor, from their compiled code.

    python tools/cuda_resources.py

The sources are compiled with NVRTC from PyPI and the options that CuPy passes, so neither a GPU nor a toolkit is
needed. Registers, shared memory and stack are read from the cubin (ELF). The number of thread blocks per multiprocessor
follows from the limits of the compute capability (CUDA C++ Programming Guide, "Technical Specifications per Compute
Capability").
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Iterator
from importlib.metadata import files, version
from pathlib import Path
from typing import NamedTuple

import torch
from orca_kernels.cuda.kernels import ATTENTION_THREADS, MERGE_THREADS, ROW_THREADS
from orca_kernels.cuda.modules import OPTIONS, TENSOR_CORES, Kernel, program
from orca_kernels.cuda.work import PLAN, PLAN_THREADS

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "cuda-kernels.md"
CUPY_OPTIONS = ("-ftz=true",)
"""Options that CuPy adds (cupy/cuda/compiler.py), besides the architecture and include paths."""
RESERVED = 1024
"""Bytes of shared memory per thread block that the system needs; in cubins since sm_90 they are part of the size."""
REGISTERS, REGISTER_UNIT, SHARED_UNIT, WARPS, BLOCKS, WARP = 65536, 256, 128, 64, 32, 32
"""Of a multiprocessor: registers, unit of their allocation to a warp, unit of bytes of shared memory, warps, blocks."""
SHARED = {"sm_80": 164 << 10, "sm_90": 228 << 10, "sm_100": 228 << 10}
"""Bytes of shared memory per multiprocessor."""
DIMS = (64, 80, 128, 256)

Compile = Callable[[Kernel, str], bytes]
"""Returns the cubin of a kernel's source for an architecture."""


class Resources(NamedTuple):
    """Needs of a function."""

    registers: int
    """Per thread."""
    shared: int
    """Bytes per thread block, without the reserved ones."""
    stack: int
    """Bytes per thread: local memory, which spilled registers need."""


def cubin(kernel: Kernel, architecture: str) -> bytes:
    """Compile a kernel's source as CuPy does. Raises RuntimeError with the compiler's log."""
    libraries = {file.name.split(".so")[0]: str(file.locate()) for file in files("nvidia-cuda-nvrtc") or []}
    ctypes.CDLL(libraries["libnvrtc-builtins"])  # NVRTC 13.0 opens this library by name, without a path
    nvrtc = ctypes.CDLL(libraries["libnvrtc"])
    options = [option.encode() for option in (*OPTIONS, *kernel.macros, *CUPY_OPTIONS, f"-arch={architecture}")]
    handle, size = ctypes.c_void_p(), ctypes.c_size_t()
    text = program(kernel.source).encode()
    nvrtc.nvrtcCreateProgram(ctypes.byref(handle), text, kernel.source.encode(), 0, None, None)
    failed = nvrtc.nvrtcCompileProgram(handle, len(options), (ctypes.c_char_p * len(options))(*options))
    if failed:
        nvrtc.nvrtcGetProgramLogSize(handle, ctypes.byref(size))
        log = ctypes.create_string_buffer(size.value)
        nvrtc.nvrtcGetProgramLog(handle, log)
        raise RuntimeError(log.value.decode())
    nvrtc.nvrtcGetCUBINSize(handle, ctypes.byref(size))
    code = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetCUBIN(handle, code)
    nvrtc.nvrtcDestroyProgram(ctypes.byref(handle))
    return code.raw


def resources(code: bytes, architecture: str) -> dict[str, Resources]:
    """Read the needs of each function of a cubin."""
    sections = dict(_sections(code))
    symbols = _symbols(code, *sections[".symtab"], *sections[".strtab"])
    found: dict[str, dict[int, int]] = {}
    place, size = sections[".nv.info"]
    end = place + size
    while place < end:
        form, attribute, length = struct.unpack_from("<BBH", code, place)
        place += 4
        if form != 4:  # the value is the length
            continue
        if attribute in (0x2F, 0x11):  # EIATTR_REGCOUNT, EIATTR_FRAME_SIZE
            symbol, value = struct.unpack_from("<II", code, place)
            found.setdefault(symbols[symbol], {})[attribute] = value
        place += length
    functions = {}
    for name, values in found.items():
        if f".text.{name}" in sections:
            _, shared = sections.get(f".nv.shared.{name}", (0, 0))
            reserved = RESERVED if shared and architecture != "sm_80" else 0
            functions[name] = Resources(values[0x2F], shared - reserved, values.get(0x11, 0))
    return functions


def blocks_per_multiprocessor(needs: Resources, threads: int, architecture: str) -> int:
    """Return how many thread blocks a multiprocessor runs at once."""
    warps = threads // WARP
    of_warp = -(-needs.registers * WARP // REGISTER_UNIT) * REGISTER_UNIT
    # A multiprocessor has four partitions, each with a quarter of the registers.
    by_registers = REGISTERS // 4 // of_warp * 4 // warps
    shared = -(-(needs.shared + RESERVED) // SHARED_UNIT) * SHARED_UNIT
    return min(by_registers, SHARED[architecture] // shared, WARPS // warps, BLOCKS)


def launches() -> Iterator[tuple[Kernel, int]]:
    """Yield the kernels of the page and their threads per block."""
    for dim in DIMS:
        yield Kernel(TENSOR_CORES, "orca_attention", torch.bfloat16, dim), ATTENTION_THREADS
    for dim in DIMS:
        yield Kernel("attention.cu", "orca_attention", torch.float32, dim), ATTENTION_THREADS
    yield Kernel("merge.cu", "orca_merge", torch.bfloat16, 128), MERGE_THREADS
    yield PLAN, PLAN_THREADS
    for name in ("store", "rotate_and_store"):
        yield Kernel(TENSOR_CORES, f"orca_{name}", torch.bfloat16, 128), ROW_THREADS
    for name in ("layer_norm", "rms_norm", "rms_norm_plus_one", "silu_and_multiply", "rotate"):
        yield Kernel("rows.cu", f"orca_{name}", torch.bfloat16), ROW_THREADS


def page(compiled: Compile) -> str:
    """Return the page."""
    architectures = list(SHARED)
    lines = [
        "# CUDA kernels: registers, shared memory, thread blocks",
        "",
        "Written by `tools/cuda_resources.py` from the code that NVRTC "
        f"{version('nvidia-cuda-nvrtc')} compiles with CuPy's options. **Nothing here was",
        "measured: no kernel has run on a GPU yet.** Per architecture: registers per thread, and thread blocks per",
        "multiprocessor, which these and shared memory allow. No kernel keeps registers in local memory, but for the",
        "bytes per thread in parentheses, which no inner loop uses.",
        "",
        "| kernel | elements | D | threads | shared memory, bytes | " + " | ".join(architectures) + " |",
        "|---|---|---|---|---|" + "---|" * len(architectures),
    ]
    for kernel, threads in launches():
        needs = {name: resources(compiled(kernel, name), name)[kernel.name] for name in architectures}
        cells = [
            f"{need.registers}{f' ({need.stack})' if need.stack else ''}, "
            f"{blocks_per_multiprocessor(need, threads, name)} blocks"
            for name, need in needs.items()
        ]
        element = str(kernel.dtype).removeprefix("torch.")
        lines.append(
            f"| `{kernel.name}` | {element if kernel is not PLAN else ''} | {kernel.head_dim or ''} | {threads} | "
            f"{needs[architectures[0]].shared:,} | {' | '.join(cells)} |"
        )
    return "\n".join(lines) + "\n"


def _sections(code: bytes) -> Iterator[tuple[str, tuple[int, int]]]:
    """Yield the name, place and size of each section (ELF-64)."""
    (table,) = struct.unpack_from("<Q", code, 0x28)
    count, names = struct.unpack_from("<HH", code, 0x3C)
    headers = [struct.unpack_from("<IIQQQQ", code, table + 64 * index) for index in range(count)]
    for name, _, _, _, place, size in headers:
        yield _text(code, headers[names][4] + name), (place, size)


def _symbols(code: bytes, place: int, size: int, names: int, _: int) -> list[str]:
    return [_text(code, names + struct.unpack_from("<I", code, place + at)[0]) for at in range(0, size, 24)]


def _text(code: bytes, place: int) -> str:
    return code[place : code.index(b"\0", place)].decode()


if __name__ == "__main__":
    PAGE.write_text(page(cubin), encoding="utf-8")
