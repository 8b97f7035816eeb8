"""The CUDA sources compile for the GPUs that they are meant for: with NVRTC from PyPI, without a GPU or a toolkit."""

from __future__ import annotations

import ctypes
from importlib.metadata import files

import pytest
import torch
from orca_kernels.cuda.modules import ELEMENTS, Kernel, program, supports

SOURCES = [("rows.cu", None), *(("attention.cu", head_dim) for head_dim in (32, 64, 80, 128, 256))]


@pytest.fixture(scope="module")
def nvrtc() -> ctypes.CDLL:
    """The library of the wheel `nvidia-cuda-nvrtc`."""
    found = [file for file in files("nvidia-cuda-nvrtc") or [] if "libnvrtc.so" in file.name]
    return ctypes.CDLL(str(found[0].locate()))


def compile_to_cubin(nvrtc: ctypes.CDLL, text: str, options: list[str]) -> bytes:
    """See NVRTC's documentation; fails with the compiler's log."""
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
    return cubin.raw


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90"])
@pytest.mark.parametrize("dtype", ELEMENTS, ids=str)
@pytest.mark.parametrize(("source", "head_dim"), SOURCES)
def test_a_cubin_comes_out(nvrtc, source, head_dim, dtype, architecture):
    if head_dim is not None and not supports(dtype, head_dim):
        assert (dtype, head_dim) == (torch.float32, 256), "everything else is meant to fit"
        return
    macros = Kernel(source, "", dtype, head_dim).macros
    options = ["--std=c++17", f"--gpu-architecture={architecture}", *macros]
    cubin = compile_to_cubin(nvrtc, program(source), options)
    assert cubin.startswith(b"\x7fELF")
    for kernel in ("orca_attention", "orca_merge") if head_dim else ("orca_layer_norm", "orca_store"):
        assert kernel.encode() in cubin
