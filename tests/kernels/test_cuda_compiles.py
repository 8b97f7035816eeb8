"""The CUDA sources compile for the GPUs that they are meant for: with NVRTC from PyPI, without a GPU or a toolkit."""

from __future__ import annotations

import ctypes
import hashlib
import re
from importlib.metadata import files, version
from pathlib import Path

import pytest
import torch
from orca_kernels.cuda.modules import ELEMENTS, TENSOR_CORES, Kernel, attention_source, program
from support.once import cache_folder, once

ROWS = [Kernel("rows.cu", "orca_layer_norm", dtype) for dtype in ELEMENTS]
SHAPES = [(dtype, head_dim) for dtype in ELEMENTS for head_dim in (32, 64, 80, 128, 256)]
ATTENTION = [Kernel(attention_source(*shape) or "", "orca_attention", *shape) for shape in SHAPES]
MERGE = [Kernel("merge.cu", "orca_merge", *shape) for shape in SHAPES]
SAMPLING = [  # the models' logits are float32
    pytest.param(Kernel("sampling.cu", "orca_sample", dtype), marks=() if dtype == torch.float32 else pytest.mark.long)
    for dtype in ELEMENTS
]
KERNELS = [*ROWS, *ATTENTION, *MERGE, *SAMPLING]


@pytest.fixture(scope="module")
def nvrtc() -> ctypes.CDLL:
    """Return the library of the wheel `nvidia-cuda-nvrtc`."""
    libraries = {file.name.split(".so")[0]: str(file.locate()) for file in files("nvidia-cuda-nvrtc") or []}
    ctypes.CDLL(libraries["libnvrtc-builtins"])  # NVRTC 13.0 opens this library by name, without a path
    return ctypes.CDLL(libraries["libnvrtc"])


def compiled(nvrtc: ctypes.CDLL, text: str, options: list[str]) -> tuple[bytes, str]:
    """Return the cubin and the compiler's log, which this machine keeps for the next run."""

    def compile_to(folder: Path) -> None:
        cubin, log = compile_to_cubin(nvrtc, text, options)
        folder.mkdir()
        (folder / "cubin").write_bytes(cubin)
        (folder / "log").write_text(log)

    digest = hashlib.sha256("\n".join([version("nvidia-cuda-nvrtc"), *options, text]).encode()).hexdigest()[:16]
    folder = once(cache_folder() / "cubins" / digest, compile_to)
    return (folder / "cubin").read_bytes(), (folder / "log").read_text()


def compile_to_cubin(nvrtc: ctypes.CDLL, text: str, options: list[str]) -> tuple[bytes, str]:
    """See NVRTC's documentation."""
    handle, size = ctypes.c_void_p(), ctypes.c_size_t()
    assert nvrtc.nvrtcCreateProgram(ctypes.byref(handle), text.encode(), b"kernels.cu", 0, None, None) == 0
    encoded = [option.encode() for option in options]
    done = nvrtc.nvrtcCompileProgram(handle, len(encoded), (ctypes.c_char_p * len(encoded))(*encoded))
    nvrtc.nvrtcGetProgramLogSize(handle, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetProgramLog(handle, log)
    assert done == 0, log.value.decode()
    nvrtc.nvrtcGetCUBINSize(handle, ctypes.byref(size))
    cubin = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetCUBIN(handle, cubin)
    nvrtc.nvrtcDestroyProgram(ctypes.byref(handle))
    return cubin.raw, log.value.decode()


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90"])
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda it: it.source + "".join(it.macros))
def test_a_cubin_comes_out(nvrtc, kernel, architecture):
    options = ["--std=c++17", f"--gpu-architecture={architecture}", "--ptxas-options=-v", *kernel.macros]
    cubin, log = compiled(nvrtc, program(kernel.source), options)
    assert cubin.startswith(b"\x7fELF")
    names = re.findall(r"void (?:__launch_bounds__\(.*\)\s+)?(orca_\w+)", program(kernel.source))
    assert kernel.name in names
    assert all(name.encode() in cubin for name in names)
    if kernel.source == TENSOR_CORES:
        assert "registers" in log
        assert all(int(size) <= 64 for size in re.findall(r"(\d+) bytes stack frame", log)), "arrays are registers"
