"""Products of bfloat16 on AMX tiles: emulated (support/emulated_tiles.h) where this processor has none."""

from __future__ import annotations

import shutil
import subprocess

import pytest
import torch
from orca_kernels.cpu import library
from orca_kernels.cpu.kernels import CpuKernels
from orca_kernels.cpu.library import CpuLibrary
from orca_kernels.cpu.panel_linear import PanelLinear
from orca_kernels.cpu.targets import AVX512, TARGETS, TILES, processor_flags
from support.cpu_targets import load, tile_target
from support.linear_maps import assert_one_product_gives_both

FLAGS = processor_flags()
pytestmark = pytest.mark.skipif(not AVX512 <= FLAGS, reason="panels of 32 outputs need AVX-512")
ROWS = (*range(1, 41), 63, 64, 65)
AMX = next(target for target in TARGETS if target.needs >= TILES)


@pytest.fixture(scope="module")
def tiles() -> CpuLibrary:
    return load(tile_target(FLAGS))


@pytest.fixture(scope="module")
def kernels(tiles) -> CpuKernels:
    return CpuKernels(tiles, torch.bfloat16)


def random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape).bfloat16() / 8


def test_the_products_are_those_of_tiles_in_a_fixed_order(kernels):
    assert kernels.name.endswith(", tiles")
    assert kernels.fixed_order


@pytest.mark.parametrize(("inputs", "outputs"), [(2, 1), (30, 31), (64, 96), (96, 33), (130, 70)])
def test_a_linear_map_of_any_shape(kernels, inputs, outputs):
    """Blocks of every height, incomplete panels and tiles; expected: the sums in float64."""
    weight, bias = random(outputs, inputs), random(outputs)
    plain, linear = kernels.linear(weight.clone(), None), kernels.linear(weight.clone(), bias)
    assert isinstance(linear, PanelLinear)
    for num_rows in ROWS:
        x, residual = random(num_rows, inputs), random(num_rows, outputs)
        product = x.double() @ weight.double().t()
        y = product + bias.double()
        for found, expected in (
            (plain(x), product),
            (linear(x), y),
            (linear.add(x, residual), residual.double() + y),
            (linear.gelu_tanh(x), torch.nn.functional.gelu(y, approximate="tanh")),
        ):
            torch.testing.assert_close(found.double(), expected, atol=1e-4, rtol=2**-8)
        assert_one_product_gives_both(linear, x)


@pytest.mark.parametrize("inputs", [64, 90])
def test_a_row_is_the_same_beside_any_others(kernels, inputs):
    """Bit for bit, at every place of blocks of every height."""
    linear, x = kernels.linear(random(70, inputs), random(70)), random(100, inputs)
    whole = linear(x)
    for first in range(100):
        assert torch.equal(linear(x[first : first + 1])[0], whole[first])
    for num_rows in range(1, 100):
        assert torch.equal(torch.cat((linear(x[:num_rows]), linear(x[num_rows:]))), whole)


def test_more_rows_than_the_cache_holds(kernels):
    """Are divided into chunks of whole blocks."""
    weight, x = random(40, 4096), random(150, 4096)
    linear = kernels.linear(weight.clone(), None)
    torch.testing.assert_close(linear(x).double(), x.double() @ weight.double().t(), atol=1e-4, rtol=2**-8)
    assert torch.equal(linear(x[100:]), linear(x)[100:])


@pytest.mark.parametrize("inputs", [6656, 7010])
def test_rows_of_many_inputs_are_multiplied_in_segments(kernels, inputs):
    """Bit for bit as few rows, which are not divided; with inputs that fill the last tile, and with others."""
    weight, x, residual = random(40, inputs), random(230, inputs), random(230, 40)
    linear = kernels.linear(weight.clone(), random(40))
    for product in (linear, linear.gelu_tanh, lambda rows: linear.add(rows, residual[: len(rows)].clone())):
        assert torch.equal(product(x[:20]), product(x)[:20])
    assert torch.equal(linear(x), torch.cat([linear(rows) for rows in x.split(16)]))
    assert_one_product_gives_both(linear, x)


def test_memory_after_the_weights_is_not_multiplied(kernels):
    """Nor what rows of an earlier call have left: zeros are after the last inputs, and after their weights."""
    kernels.linear(random(64, 64), None)(torch.full((3, 64), float("inf")).bfloat16())
    weight = random(64, 34)
    weight[32:] = float("inf")
    x = random(3, 34).abs() + 1
    found = kernels.linear(weight.clone(), None)(x)
    expected = x.double() @ weight[:32].double().t()
    torch.testing.assert_close(found[:, :32].double(), expected, atol=1e-4, rtol=2**-8)
    assert found[:, 32:].isposinf().all()


@pytest.mark.parametrize("num_rows", [1, 7, 16, 17, 32, 40])
def test_a_recorded_product_is_the_same_when_it_is_replayed(kernels, num_rows):
    first, second = kernels.linear(random(70, 96), random(70)), kernels.linear(random(33, 70), None)
    x = random(num_rows, 96)
    output, replay = kernels.calls(lambda: second(first.gelu_tanh(x)))
    for _ in range(3):
        x.copy_(random(num_rows, 96))
        replay()
        replayed = output.clone()
        assert torch.equal(replayed, second(first.gelu_tanh(x)))
        replay()
        assert torch.equal(output, replayed)


@pytest.mark.long  # compiles for another processor
def test_the_library_for_amx_has_the_instructions():
    """The compiler of the tests knows them, and nothing replaces them."""
    objdump = shutil.which("objdump")
    assert objdump is not None, "comes with the assembler (binutils)"
    loaded = library.load(AMX)
    text = subprocess.run([objdump, "-d", loaded._name], capture_output=True, text=True, check=True).stdout
    for instruction in ("ldtilecfg", "tileloadd", "tilestored", "tilezero", "tilerelease"):
        assert f"\t{instruction}" in text
    for product in ("tdpbf16ps", "tdpbsud", "tdpbssd"):
        assert f"\t{product}" in text


def test_the_measurement_chooses_tiles_only_where_they_pay(tiles):
    """An emulation takes many times as long as other products; a processor's own tiles do not."""
    assert tiles.orca_tiles_pay() == (not AMX.missing(FLAGS))
