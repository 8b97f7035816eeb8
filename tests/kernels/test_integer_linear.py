"""Products of weights and rows of eight bits: the integers of every target are those of torch, in any batch."""

from __future__ import annotations

import pytest
import torch
from orca_kernels.cpu.kernels import MOST_INPUTS, NAMES, CpuKernels
from orca_kernels.cpu.panel_linear import PanelLinear
from orca_kernels.interface import Kernels, LinearMap, whole_group
from orca_kernels.kv_quantization import quantize_rows
from orca_kernels.quantization import W8A8, QuantizedWeight, quantize
from orca_kernels.reference import ReferenceIntegerLinear, ReferenceKernels
from support.integer_products import every_arrangement
from support.linear_maps import assert_one_product_gives_both

ROWS = (1, 2, 3, 6, 7, 12, 13, 16, 17, 32, 33, 50)


@pytest.fixture(scope="module", params=[torch.float32, torch.bfloat16], ids=str)
def dtype(request) -> torch.dtype:
    return request.param


@pytest.fixture(scope="module")
def kernels(library, dtype) -> CpuKernels:
    return CpuKernels(library, dtype)


every_library = pytest.mark.parametrize(("target", "instructions"), every_arrangement(), scope="module")


def scaled(x: torch.Tensor, weight: QuantizedWeight) -> torch.Tensor:
    """Return y in float32: the product of integers in torch's int64, and then the scales."""
    numbers, row_scales = quantize_rows(x)
    sums = numbers.long() @ weight.numbers.long().t()
    assert sums.abs().max() < 2**31
    return sums.float() * row_scales.unsqueeze(1) * weight.scales.squeeze(1)


def of_numbers(numbers: torch.Tensor) -> QuantizedWeight:
    """Return a weight of these numbers, whose scales are powers of two."""
    scales = 2.0 ** -torch.arange(len(numbers)).fmod(9).float()
    return QuantizedWeight(W8A8, numbers, scales.unsqueeze(1), whole_group(numbers.shape[1]))


@every_library
@pytest.mark.parametrize(("inputs", "outputs"), [(1, 1), (7, 5), (64, 32), (130, 70), (300, 211), (1100, 40)])
def test_products_equal_those_of_torch_bit_for_bit(kernels, dtype, inputs, outputs):
    """Incomplete words, panels and tiles, and blocks of every height; all numbers of eight bits."""
    generator = torch.Generator().manual_seed(inputs)
    weight = torch.randn(outputs, inputs, generator=generator)
    for quantised in (
        quantize(weight, W8A8),
        of_numbers(torch.randint(-128, 128, (outputs, inputs), dtype=torch.int8, generator=generator)),
    ):
        linear = kernels.quantized_linear(quantised, None, dtype)
        assert isinstance(linear, PanelLinear)
        for num_rows in ROWS:
            x = (torch.randn(num_rows, inputs, generator=generator) * 3).to(dtype)
            assert torch.equal(linear(x), scaled(x, quantised).to(dtype))


@every_library
@pytest.mark.parametrize("inputs", [5400, 8193])
def test_rows_of_many_inputs(library, kernels, dtype, inputs):
    """On tiles they are multiplied in segments (cpu/segments.h); a row's scale is that of all its inputs."""
    num_rows = 450 if library.tiles else 30  # on tiles two chunks
    generator = torch.Generator().manual_seed(inputs)
    weight = quantize(torch.randn(40, inputs, generator=generator), W8A8)
    linear = kernels.quantized_linear(weight, None, dtype)
    x = torch.randn(num_rows, inputs, generator=generator).to(dtype)
    x[::2, -1], x[1::2, 0] = 9, -9
    assert torch.equal(linear(x), scaled(x, weight).to(dtype))
    assert_one_product_gives_both(linear, x)


@every_library
def test_the_largest_sums_of_32_bits(kernels, dtype):
    """Of the largest numbers with equal and opposite signs; the reference computes maps whose sums may not fit."""
    numbers = torch.full((3, MOST_INPUTS), -128, dtype=torch.int8)
    numbers[1] = 127
    numbers[2, ::2] = 127
    x = torch.ones(2, MOST_INPUTS, dtype=dtype)
    x[1] = -1
    weight = of_numbers(numbers)
    assert torch.equal(kernels.quantized_linear(weight, None, dtype)(x), scaled(x, weight).to(dtype))
    longer = of_numbers(torch.full((1, MOST_INPUTS + 1), -128, dtype=torch.int8))
    assert isinstance(kernels.quantized_linear(longer, None, dtype), ReferenceIntegerLinear)


def maps(kernels: Kernels, weight: QuantizedWeight, bias: torch.Tensor, dtype: torch.dtype) -> list[LinearMap]:
    return [kernels.quantized_linear(weight, bias, dtype), ReferenceKernels().quantized_linear(weight, bias, dtype)]


@every_library
def test_bias_activation_and_residual(kernels, dtype):
    """Added in float32 and rounded once; the reference rounds to the type of activations in between."""
    weight, bias = quantize(torch.randn(70, 130), W8A8), torch.randn(70).to(dtype)
    linear, reference = maps(kernels, weight, bias, dtype)
    error = 1e-5 if dtype == torch.float32 else 2**-7
    for num_rows in (1, 13, 33):
        x, residual = torch.randn(num_rows, 130).to(dtype), torch.randn(num_rows, 70).to(dtype)
        y = scaled(x, weight) + bias.float()
        for found, same, expected in (
            (linear(x), reference(x), y),
            (linear.add(x, residual.clone()), reference.add(x, residual), y + residual.float()),
            (linear.gelu_tanh(x), reference.gelu_tanh(x), torch.nn.functional.gelu(y, approximate="tanh")),
        ):
            torch.testing.assert_close(found.float(), expected, atol=error, rtol=error)
            torch.testing.assert_close(same.float(), expected, atol=2 * error, rtol=2 * error)
        assert_one_product_gives_both(linear, x)


@every_library
def test_a_row_is_the_same_beside_any_others(request, kernels, dtype):
    """Bit for bit, with bias, activation and residual, also in chunks of rows that fit into the cache."""
    linear = kernels.quantized_linear(quantize(torch.randn(70, 90), W8A8), torch.randn(70).to(dtype), dtype)
    x, residual = torch.randn(60, 90).to(dtype), torch.randn(60, 70).to(dtype)
    whole = [linear(x), linear.gelu_tanh(x), linear.add(x, residual.clone())]
    step = 7 if request.node.get_closest_marker("qemu") else 1  # under an emulator all take minutes
    for num_rows in range(1, 60, step):
        for some in (slice(0, num_rows), slice(num_rows, 60)):
            found = [linear(x[some]), linear.gelu_tanh(x[some]), linear.add(x[some], residual[some].clone())]
            assert all(torch.equal(one, all_rows[some]) for one, all_rows in zip(found, whole, strict=True))
    wide, x = kernels.quantized_linear(quantize(torch.randn(3, 20_000), W8A8), None, dtype), torch.randn(90, 20_000)
    x = x.to(dtype)
    assert torch.equal(wide(x[70:]), wide(x)[70:])


@every_library
def test_rows_of_zeros_and_rows_that_are_not_finite(kernels, dtype):
    """A row with an infinity or NaN is NaN as a whole, and no other row is."""
    weight, bias = quantize(torch.randn(40, 50), W8A8), torch.randn(40).to(dtype)
    x = torch.randn(20, 50).to(dtype)
    expected = maps(kernels, weight, bias, dtype)[0](x)
    x[3], x[5, 49], x[6, 0], x[7, 20] = 0, float("inf"), float("-inf"), float("nan")
    for linear in maps(kernels, weight, bias, dtype):
        found = linear(x)
        assert torch.equal(found[3], bias)
        assert found[5:8].isnan().all()
        rest = [row for row in range(20) if row not in (3, 5, 6, 7)]
        torch.testing.assert_close(found[rest], expected[rest], atol=0.02, rtol=0.02)


@every_library
def test_parts_of_tensor_parallel_ranks(kernels, dtype):
    """Divided outputs have the row's own scale, and so equal the whole; divided inputs have a scale per part."""
    weight, x = torch.randn(96, 120), torch.randn(9, 120).to(dtype)
    whole = kernels.quantized_linear(quantize(weight, W8A8), None, dtype)(x)
    parts = [kernels.quantized_linear(quantize(part, W8A8), None, dtype)(x) for part in weight.split(41)]
    assert torch.equal(torch.cat(parts, dim=1), whole)
    for part in (slice(0, 50), slice(50, 120)):
        quantised = quantize(weight[:, part], W8A8)
        found = kernels.quantized_linear(quantised, None, dtype)(x[:, part])
        assert torch.equal(found, scaled(x[:, part], quantised).to(dtype))


@pytest.mark.parametrize("name", NAMES)
def test_the_reference_multiplies_the_same_integers(name):
    """Also of more inputs than a float32 sums exactly."""
    weight, x = quantize(torch.randn(7, 5000), W8A8), torch.randn(3, 5000).to(name)
    linear = ReferenceKernels().quantized_linear(weight, None, name)
    assert torch.equal(linear(x), scaled(x, weight).to(name))
