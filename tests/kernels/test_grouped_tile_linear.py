"""Products of weights with groups of inputs on AMX tiles: emulated (support/emulated_tiles.h) where there are none."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from orca_kernels.cpu.kernels import NAMES, CpuKernels
from orca_kernels.cpu.library import CpuLibrary
from orca_kernels.cpu.targets import AVX512, processor_flags
from orca_kernels.interface import whole_group
from orca_kernels.quantization import BITS, GROUP, W4A8, WEIGHT_ONLY, QuantizedWeight
from support.cpu_targets import load, tile_target
from support.linear_maps import assert_one_product_gives_both

FLAGS = processor_flags()
pytestmark = pytest.mark.skipif(not AVX512 <= FLAGS, reason="panels of 32 outputs need AVX-512")
SIZES = ((1, 1), (7, 5), (72, 64), (130, 70), (300, 33), (1100, 40))
"""Inputs and outputs."""
every_size = pytest.mark.parametrize(("inputs", "outputs"), SIZES)
every_group = pytest.mark.parametrize("group", [8, 24, 32, 64, GROUP, None], ids=str)
with_and_without_zeros = pytest.mark.parametrize("asymmetric", [False, True], ids=["symmetric", "zero points"])


@pytest.fixture(scope="module")
def tiles() -> CpuLibrary:
    return load(tile_target(FLAGS))


@pytest.fixture(scope="module")
def plain(tiles) -> CpuLibrary:
    """Return the same library, of which other instructions are used."""
    library = CpuLibrary(tiles._name, tiles.target)
    library.tiles = library.vnni = False
    return library


def random_weight(
    quantization: str, inputs: int, outputs: int, group: int | None, *, asymmetric: bool
) -> QuantizedWeight:
    """Return a weight of all numbers and zero points."""
    least = -(1 << (BITS[quantization] - 1))
    group = group or whole_group(inputs)
    groups = -(-inputs // group)
    numbers = torch.randint(least, -least, (outputs, inputs), dtype=torch.int8)
    zeros = torch.randint(least, -least, (outputs, groups), dtype=torch.int8) if asymmetric else None
    return QuantizedWeight(quantization, numbers, torch.randn(outputs, groups), group, zeros=zeros)


@pytest.mark.parametrize("dtype", NAMES, ids=str)
@with_and_without_zeros
@every_group
@every_size
def test_w4a8_has_the_bits_of_other_instructions(tiles, plain, dtype, inputs, outputs, group, asymmetric):
    """At blocks of every height, for scales that are not powers of two."""
    weight, bias = random_weight(W4A8, inputs, outputs, group, asymmetric=asymmetric), torch.randn(outputs).to(dtype)
    found, expected = (CpuKernels(each, dtype).quantized_linear(weight, bias, dtype) for each in (tiles, plain))
    for num_rows in (*range(1, 41), 63, 64, 65):
        x = torch.randn(num_rows, inputs).to(dtype)
        assert torch.equal(found(x), expected(x))


@pytest.fixture(scope="module")
def kernels(tiles) -> CpuKernels:
    return CpuKernels(tiles, torch.bfloat16)


def random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape).bfloat16()


def assert_near(found: torch.Tensor, expected: torch.Tensor) -> None:
    """Compare bfloat16 with float64; sums of many products that cancel out have the rounding of the largest."""
    torch.testing.assert_close(found.double(), expected, atol=2e-6 * float(expected.abs().max()) + 1e-9, rtol=2**-8)


@pytest.mark.parametrize("quantization", WEIGHT_ONLY)
@with_and_without_zeros
@every_group
@every_size
def test_weights_alone_of_any_shape(kernels, quantization, inputs, outputs, group, asymmetric):
    """Blocks of every height, incomplete panels, tiles and groups; expected: the sums in float64."""
    weight = random_weight(quantization, inputs, outputs, group, asymmetric=asymmetric)
    exact, bias = weight.dequantized(torch.float64), torch.randn(outputs).bfloat16()
    plain, linear = (kernels.quantized_linear(weight, each, torch.bfloat16) for each in (None, bias))
    for num_rows in (1, 2, 15, 16, 17, 31, 32, 33, 70):
        x, residual = torch.randn(num_rows, inputs).bfloat16(), torch.randn(num_rows, outputs).bfloat16()
        product = x.double() @ exact.t()
        y = product + bias.double()
        assert_near(plain(x), product)
        assert_near(linear(x), y)
        assert_near(linear.add(x, residual.clone()), residual.double() + y)
        assert_near(linear.gelu_tanh(x), torch.nn.functional.gelu(y, approximate="tanh"))
        assert_one_product_gives_both(linear, x)


@pytest.mark.parametrize("quantization", WEIGHT_ONLY)
@pytest.mark.parametrize("numbers", ["all", "differences"])
def test_numbers_less_their_zero_points_are_exact(kernels, quantization, numbers):
    """Every number, and every difference that there can be, by products with rows that have a single 1."""
    least = -(1 << (BITS[quantization] - 1))
    inputs = torch.arange(least, -least, dtype=torch.int8)
    weight = QuantizedWeight(quantization, inputs.repeat(-2 * least, 1), torch.ones(-2 * least, 1), whole_group(256))
    if numbers == "differences":
        weight = replace(weight, zeros=inputs.unsqueeze(1))
    found = kernels.quantized_linear(weight, None, torch.bfloat16)(torch.eye(len(inputs)).bfloat16())
    assert torch.equal(found.float(), weight.dequantized(torch.float32).t())


@pytest.mark.parametrize("quantization", WEIGHT_ONLY)
@pytest.mark.parametrize("group", [24, GROUP])
def test_a_row_with_weights_alone_is_the_same_beside_any_others(kernels, quantization, group):
    """Bit for bit, at every place of blocks of every height, also in chunks of rows that fit into the cache."""
    weight = random_weight(quantization, 300, 70, group, asymmetric=True)
    linear, x = kernels.quantized_linear(weight, torch.randn(70).bfloat16(), torch.bfloat16), random(100, 300)
    residual = random(100, 70)
    whole = [linear(x), linear.gelu_tanh(x), linear.add(x, residual.clone())]
    for first in range(100):
        assert torch.equal(linear(x[first : first + 1])[0], whole[0][first])
    for num_rows in range(1, 100):
        for some in (slice(0, num_rows), slice(num_rows, 100)):
            found = [linear(x[some]), linear.gelu_tanh(x[some]), linear.add(x[some], residual[some].clone())]
            assert all(torch.equal(one, all_rows[some]) for one, all_rows in zip(found, whole, strict=True))
    wide = random_weight(quantization, 20_000, 3, group, asymmetric=False)
    linear, x = kernels.quantized_linear(wide, None, torch.bfloat16), random(90, 20_000)
    assert torch.equal(linear(x[70:]), linear(x)[70:])


@pytest.mark.parametrize("quantization", WEIGHT_ONLY)
@pytest.mark.parametrize(("inputs", "group"), [(6656, GROUP), (7010, 24), (5888, 2944), (5888, None)], ids=str)
def test_rows_of_many_inputs_are_multiplied_in_segments(kernels, quantization, inputs, group):
    """Of whole groups, but not where all inputs are one group; bit for bit as few rows, which are not divided."""
    weight = random_weight(quantization, inputs, 40, group, asymmetric=True)
    x, residual = random(230, inputs), random(230, 40)
    linear = kernels.quantized_linear(weight, torch.randn(40).bfloat16(), torch.bfloat16)
    for product in (linear, linear.gelu_tanh, lambda rows: linear.add(rows, residual[: len(rows)].clone())):
        assert torch.equal(product(x[:20]), product(x)[:20])
    assert torch.equal(linear(x), torch.cat([linear(rows) for rows in x.split(16)]))
    assert_one_product_gives_both(linear, x)


@pytest.mark.parametrize("quantization", WEIGHT_ONLY)
def test_rows_that_are_not_finite_change_no_other_row(kernels, quantization):
    """And zeros stand after the last input, and after its weights, whatever an earlier call has left there."""
    large = random_weight(quantization, 256, 64, GROUP, asymmetric=True)
    kernels.quantized_linear(large, None, torch.bfloat16)(torch.full((40, 256), float("inf")).bfloat16())
    weight, x = random_weight(quantization, 35, 40, 8, asymmetric=True), random(40, 35)
    linear = kernels.quantized_linear(weight, None, torch.bfloat16)
    assert_near(linear(x), x.double() @ weight.dequantized(torch.float64).t())
    expected = linear(x)
    x[3], x[5, 34] = float("nan"), float("inf")
    found, rest = linear(x), [row for row in range(40) if row not in (3, 5)]
    assert torch.equal(found[rest], expected[rest])
    assert found[3].isnan().all()
    assert not found[5].isfinite().any()


@pytest.mark.parametrize("quantization", [*WEIGHT_ONLY, W4A8])
@pytest.mark.parametrize("num_rows", [1, 7, 17, 40])
def test_a_recorded_product_is_the_same_when_it_is_replayed(kernels, quantization, num_rows):
    weight = random_weight(quantization, 300, 70, GROUP, asymmetric=True)
    linear, x = kernels.quantized_linear(weight, None, torch.bfloat16), random(num_rows, 300)
    output, replay = kernels.calls(lambda: linear.gelu_tanh(x))
    for _ in range(3):
        x.copy_(random(num_rows, 300))
        replay()
        assert torch.equal(output, linear.gelu_tanh(x))
