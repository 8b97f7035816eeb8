"""With several threads and many rows, each thread multiplies rows of its own (cpu/linear.h, `share_out`)."""

from __future__ import annotations

import re

import pytest
import torch
from orca_kernels.cpu.kernels import CpuKernels
from orca_kernels.cpu.library import SOURCES
from orca_kernels.interface import LinearMap
from orca_kernels.low_rank import AdapterRows
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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("target", OWN_PRODUCTS)
def test_each_row_gets_the_product_of_an_adapter_once(target, dtype):
    """Sums in place: a row that two threads computed would get the product twice."""
    low_rank = CpuKernels(load(target), dtype).low_rank(48)
    low_rank.put(3, torch.randn(8, 48).to(dtype), torch.randn(70, 8).to(dtype))
    adapters = torch.full((3 * OWN_ROWS + 37,), 3)
    of_rows = AdapterRows(adapters, [(3, torch.arange(len(adapters)))])
    x, y = torch.randn(len(adapters), 48).to(dtype), torch.randn(len(adapters), 70).to(dtype)
    results = []
    for count in (1, 2, 3):
        results.append(y.clone())
        with torch_threads(count):
            low_rank.add(x, results[-1], of_rows)
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])
