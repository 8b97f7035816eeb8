"""Segments of inputs (cpu/segments.h) in a library with small limits, so that small maps have many of everything."""

from __future__ import annotations

import re
import shutil

import pytest
import torch
from orca_kernels.cpu.kernels import CpuKernels
from orca_kernels.cpu.library import SOURCES, CpuLibrary
from orca_kernels.cpu.targets import AVX512, TARGETS, processor_flags
from orca_kernels.interface import LinearMap
from orca_kernels.quantization import W8A8, WEIGHT_ONLY, quantize
from support.emulated_tiles import HEADER, compile_with
from support.torch_threads import torch_threads

pytestmark = [
    pytest.mark.skipif(not processor_flags() >= AVX512, reason="panels of 32 outputs need AVX-512"),
    pytest.mark.long,  # compiles
]
LIMITS = {"kLongRow": "40", "kSegmentWords": "20", "kMostSums": "4096", "kChunkWords": "1500", "kOwnRows": "40"}
"""Words of a row, of a segment, sums, words of a chunk of rows, and a thread's own rows (test_own_rows.py)."""
LEVEL = "x86-64-v4"


@pytest.fixture(scope="module")
def kernels(tmp_path_factory) -> CpuKernels:
    """Return kernels with emulated tiles, on a processor with tiles, too."""
    folder = shutil.copytree(SOURCES, tmp_path_factory.mktemp("limits") / "cpu")
    for name, value in LIMITS.items():
        found = 0
        for path in (folder / "segments.h", folder / "linear.h"):
            text, count = re.subn(rf"\b{name} = [^,;]+(?=[,;])", f"{name} = {value}", path.read_text())
            path.write_text(text)
            found += count
        assert found, name
    compile_with(HEADER, folder / "kernels.cpp", LEVEL, folder / "library.so")
    library = CpuLibrary(folder / "library.so", next(target for target in TARGETS if target.level == LEVEL))
    library.tiles = True
    return CpuKernels(library, torch.bfloat16)


@pytest.mark.parametrize("quantization", ["none", *WEIGHT_ONLY, W8A8])
@pytest.mark.parametrize(("inputs", "outputs"), [(700, 300), (1030, 161)])
def test_rows_are_those_of_undivided_products(kernels, quantization, inputs, outputs):
    """Bit for bit, with several segments, chunks of rows and passes of outputs; a row alone is not divided."""
    check(kernels, quantization, inputs, outputs, 1)


@pytest.mark.parametrize("quantization", ["none", *WEIGHT_ONLY, W8A8])
@pytest.mark.parametrize(("inputs", "outputs"), [(700, 300), (1030, 161)])
def test_own_rows_of_threads_are_those_of_undivided_products(kernels, quantization, inputs, outputs):
    check(kernels, quantization, inputs, outputs, 2)


def check(kernels: CpuKernels, quantization: str, inputs: int, outputs: int, threads: int) -> None:
    weight, bias, residual = (
        torch.randn(*shape).bfloat16() for shape in ((outputs, inputs), (outputs,), (150, outputs))
    )
    linear: LinearMap = (
        kernels.linear(weight, bias)
        if quantization == "none"
        else kernels.quantized_linear(quantize(weight, quantization), bias, torch.bfloat16)
    )
    x = torch.randn(150, inputs).bfloat16()
    x[::3, -1], x[1::3, 0] = 9, -9  # the scale of a row of w8a8 is that of its first or last segment
    rows, residuals = x.split(1), residual.split(1)
    alone, activated = [linear(row) for row in rows], [linear.gelu_tanh(row) for row in rows]
    added = [linear.add(row, before.clone()) for row, before in zip(rows, residuals, strict=True)]
    with torch_threads(threads):
        assert torch.equal(linear(x), torch.cat(alone))
        assert torch.equal(linear.gelu_tanh(x), torch.cat(activated))
        assert torch.equal(linear.add(x, residual.clone()), torch.cat(added))
