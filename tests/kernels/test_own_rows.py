"""With several threads and many rows, each thread multiplies rows of its own (cpu/linear.h, `share_out`)."""

from __future__ import annotations

import re

import pytest
import torch
from orca_kernels.cpu.kernels import CpuKernels
from orca_kernels.cpu.library import SOURCES
from orca_kernels.interface import LinearMap
from orca_kernels.quantization import BITS, quantize
from support.cpu_targets import cpu_target_params, load
from support.torch_threads import torch_threads

OWN_ROWS = int(re.findall(r"\bkOwnRows = (\d+),", (SOURCES / "linear.h").read_text())[0])
OWN_PRODUCTS = [param for param in cpu_target_params() if not param.values[0].onednn_products]
LONG = 2600
"""Inputs of rows that are divided into segments."""


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("target", OWN_PRODUCTS)
@pytest.mark.parametrize("quantization", ["none", *BITS])
@pytest.mark.parametrize("inputs", [192, LONG])
def test_the_rows_of_several_threads_are_those_of_one(target, dtype, quantization, inputs):
    """Bit for bit; with three threads the numbers of their rows differ, and most blocks are not full."""
    kernels = CpuKernels(load(target), dtype)
    weight, bias = torch.randn(70, inputs).to(dtype), torch.randn(70).to(dtype)
    linear: LinearMap = (
        kernels.linear(weight, bias)
        if quantization == "none"
        else kernels.quantized_linear(quantize(weight, quantization), bias, dtype)
    )
    x = torch.randn(3 * OWN_ROWS + 37, inputs).to(dtype)
    residual = torch.randn(len(x), 70).to(dtype)
    with torch_threads(1):
        expected = linear(x), linear.gelu_tanh(x), linear.add(x, residual.clone())
    for count in (2, 3):
        with torch_threads(count):
            found = linear(x), linear.gelu_tanh(x), linear.add(x, residual.clone())
        assert all(map(torch.equal, found, expected))
