"""Products of weights of four bits and rows of eight bits: exact in each group of inputs, the same row in any batch."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from orca_kernels.cpu.kernels import MOST_INPUTS, NAMES, CpuKernels
from orca_kernels.cpu.panel_linear import PanelLinear
from orca_kernels.cpu.reordered_linear import ReorderedLinear
from orca_kernels.interface import whole_group
from orca_kernels.kv_quantization import quantize_rows
from orca_kernels.quantization import GROUP, W4A8, QuantizedWeight, quantize
from orca_kernels.reference import ReferenceIntegerLinear, ReferenceKernels
from support.integer_products import (
    AVX_VNNI,
    NEEDS_AVX2,
    PAIRS,
    emulated_tiles,
    on_avx2,
    own_targets,
    with_own_instructions,
)
from support.linear_maps import assert_one_product_gives_both

LIBRARIES = [
    pytest.param(None, PAIRS, id=PAIRS, marks=NEEDS_AVX2),
    *emulated_tiles(),
    *with_own_instructions([param for param in own_targets() if param.values[0].level != "x86-64"]),
    *(on_avx2(instructions, f"AVX2, {instructions}") for instructions in (PAIRS, AVX_VNNI)),
]
"""Targets, and other instructions than a target's own."""
ROWS = (1, 2, 3, 4, 5, 8, 11, 12, 13, 16, 17, 25, 32, 33, 50, 70)


@pytest.fixture(scope="module", params=[torch.float32, torch.bfloat16], ids=str)
def dtype(request) -> torch.dtype:
    return request.param


@pytest.fixture(scope="module")
def kernels(library, dtype) -> CpuKernels:
    return CpuKernels(library, dtype)


every_library = pytest.mark.parametrize(("target", "instructions"), LIBRARIES, scope="module")


def scaled(x: torch.Tensor, weight: QuantizedWeight) -> torch.Tensor:
    """Return y in float32: for each group the product of integers in torch's int64, times both scales in float64."""
    if weight.order is not None:
        x = x[:, weight.order]
    y = torch.zeros(len(x), len(weight.numbers), dtype=torch.float64)
    zeros = torch.zeros_like(weight.scales) if weight.zeros is None else weight.zeros
    for part, numbers, scales, zero in zip(
        *(torch.split(each, weight.group, dim=1) for each in (x, weight.numbers)),
        weight.scales.t(),
        zeros.t(),
        strict=True,
    ):
        of_rows, row_scales = quantize_rows(part)
        sums = of_rows.long() @ (numbers.long() - zero.long().unsqueeze(1)).t()
        y += sums.double() * row_scales.unsqueeze(1).double() * scales.double()
    return y.float()


def of_numbers(numbers: torch.Tensor, group: int, *, asymmetric: bool = False) -> QuantizedWeight:
    """Return a weight of these numbers, whose scales are powers of two, with or without zero points."""
    groups = -(-numbers.shape[1] // group)
    places = torch.arange(len(numbers) * groups).reshape(len(numbers), groups)
    zeros = (places % 16 - 8).to(torch.int8) if asymmetric else None
    return QuantizedWeight(W4A8, numbers, 2.0 ** -(places % 5).float(), group, zeros=zeros)


def whole_numbers(rows: int, inputs: int, group: int, generator: torch.Generator) -> torch.Tensor:
    """Return rows of integers whose groups have the scale 1: each has 127 or -127."""
    x = torch.randint(-127, 128, (rows, inputs), generator=generator)
    x[:, ::group] = torch.where(x[:, ::group] > 0, 127, -127)
    return x.float()


@every_library
@pytest.mark.parametrize("asymmetric", [False, True], ids=["symmetric", "zero points"])
@pytest.mark.parametrize("group", [8, 24, GROUP, None])
@pytest.mark.parametrize(
    ("inputs", "outputs"),
    [
        *(pytest.param(*size, marks=pytest.mark.long) for size in ((1, 1), (64, 32), (130, 70))),
        (7, 5),
        (300, 211),
        (1100, 40),
    ],
)
def test_sums_of_integers_are_those_of_torch_bit_for_bit(kernels, dtype, inputs, outputs, group, asymmetric):
    """Incomplete words, groups and panels, and blocks of every height; all numbers of four bits."""
    generator = torch.Generator().manual_seed(inputs)
    numbers = torch.randint(-8, 8, (outputs, inputs), dtype=torch.int8, generator=generator)
    weight = of_numbers(numbers, group or whole_group(inputs), asymmetric=asymmetric)
    linear = kernels.quantized_linear(weight, None, dtype)
    assert isinstance(linear, PanelLinear)
    for num_rows in ROWS:
        x = whole_numbers(num_rows, inputs, weight.group, generator)
        assert torch.equal(linear(x.to(dtype)), scaled(x, weight).to(dtype))


@every_library
def test_the_largest_sums(kernels, dtype):
    """Of the largest numbers with equal and opposite signs; the reference computes maps of more inputs."""
    numbers = torch.full((3, MOST_INPUTS), -8, dtype=torch.int8)
    numbers[1] = 7
    numbers[2, ::2] = 7
    x = torch.ones(2, MOST_INPUTS, dtype=dtype)
    x[1] = -1
    weight = of_numbers(numbers, whole_group(MOST_INPUTS))
    found = kernels.quantized_linear(weight, None, dtype)(x)
    torch.testing.assert_close(found, scaled(x, weight).to(dtype))
    longer = of_numbers(torch.full((1, MOST_INPUTS + 1), -8, dtype=torch.int8), GROUP)
    assert isinstance(kernels.quantized_linear(longer, None, dtype), ReferenceIntegerLinear)


def assert_near(found: torch.Tensor, expected: torch.Tensor) -> None:
    error = 1e-5 if found.dtype == torch.float32 else 2**-7
    torch.testing.assert_close(found.float(), expected, atol=error * float(expected.abs().max()), rtol=error)


@every_library
def test_bias_activation_residual_and_order(kernels, dtype):
    """As in the reference, and as in products of integers by torch."""
    weight, bias = quantize(torch.randn(70, 300) / 8, W4A8), torch.randn(70).to(dtype)
    order, zeros = torch.randperm(300), torch.randint(-8, 8, weight.scales.shape, dtype=torch.int8)
    reordered = replace(weight, order=order, zeros=zeros)
    for each in (weight, reordered):
        linear = kernels.quantized_linear(each, bias, dtype)
        assert isinstance(linear, PanelLinear if each is weight else ReorderedLinear)
        for num_rows in (1, 13, 33):
            x, residual = torch.randn(num_rows, 300).to(dtype), torch.randn(num_rows, 70).to(dtype)
            y = scaled(x, each) + bias.float()
            for computed in (linear, ReferenceKernels().quantized_linear(each, bias, dtype)):
                assert_near(computed(x), y)
                assert_near(computed.add(x, residual.clone()), y + residual.float())
                assert_near(computed.gelu_tanh(x), torch.nn.functional.gelu(y, approximate="tanh"))
                assert_one_product_gives_both(computed, x)


@every_library
def test_a_row_is_the_same_beside_any_others(request, kernels, dtype):
    """Bit for bit, with bias, activation and residual, also in chunks of rows that fit into the cache."""
    linear = kernels.quantized_linear(quantize(torch.randn(70, 200), W4A8), torch.randn(70).to(dtype), dtype)
    x, residual = torch.randn(60, 200).to(dtype), torch.randn(60, 70).to(dtype)
    whole = [linear(x), linear.gelu_tanh(x), linear.add(x, residual.clone())]
    step = 7 if request.node.get_closest_marker("qemu") else 1  # under an emulator all take minutes
    for num_rows in range(1, 60, step):
        for some in (slice(0, num_rows), slice(num_rows, 60)):
            found = [linear(x[some]), linear.gelu_tanh(x[some]), linear.add(x[some], residual[some].clone())]
            assert all(torch.equal(one, all_rows[some]) for one, all_rows in zip(found, whole, strict=True))
    wide, x = kernels.quantized_linear(quantize(torch.randn(3, 20_000), W4A8), None, dtype), torch.randn(90, 20_000)
    x = x.to(dtype)
    assert torch.equal(wide(x[70:]), wide(x)[70:])


@every_library
def test_rows_of_zeros_and_rows_that_are_not_finite(kernels, dtype):
    """A row with an infinity or NaN is NaN as a whole, and no other row is."""
    weight, bias = quantize(torch.randn(40, 300), W4A8), torch.randn(40).to(dtype)
    x = torch.randn(20, 300).to(dtype)
    expected = kernels.quantized_linear(weight, bias, dtype)(x)
    x[3], x[5, 299], x[6, 0], x[7, 20] = 0, float("inf"), float("-inf"), float("nan")
    for linear in (
        kernels.quantized_linear(weight, bias, dtype),
        ReferenceKernels().quantized_linear(weight, bias, dtype),
    ):
        found = linear(x)
        assert torch.equal(found[3], bias)
        assert found[5:8].isnan().all()
        rest = [row for row in range(20) if row not in (3, 5, 6, 7)]
        assert_near(found[rest], expected[rest].float())


@every_library
def test_parts_of_tensor_parallel_ranks(kernels, dtype):
    """Divided outputs equal the whole; inputs that are divided between groups have the whole's numbers and scales."""
    weight, x = torch.randn(96, 3 * GROUP), torch.randn(9, 3 * GROUP).to(dtype)
    whole = kernels.quantized_linear(quantize(weight, W4A8), None, dtype)(x)
    parts = [kernels.quantized_linear(quantize(part, W4A8), None, dtype)(x) for part in weight.split(41)]
    assert torch.equal(torch.cat(parts, dim=1), whole)
    of_inputs = [
        kernels.quantized_linear(quantize(weight[:, part], W4A8), None, dtype)(x[:, part]).float()
        for part in (slice(0, GROUP), slice(GROUP, 3 * GROUP))
    ]
    assert_near((of_inputs[0] + of_inputs[1]).to(dtype), whole.float())


@pytest.mark.parametrize("name", NAMES)
def test_the_reference_multiplies_the_same_integers(name):
    """Also of groups of more inputs than a float32 sums exactly."""
    generator = torch.Generator().manual_seed(1)
    weight = of_numbers(torch.randint(-8, 8, (7, 5000), dtype=torch.int8, generator=generator), whole_group(5000))
    x = whole_numbers(3, 5000, weight.group, generator)
    linear = ReferenceKernels().quantized_linear(weight, None, name)
    assert torch.equal(linear(x.to(name)), scaled(x, weight).to(name))
