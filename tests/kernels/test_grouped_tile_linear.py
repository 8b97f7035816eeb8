"""Products of weights with groups of inputs on AMX tiles: emulated (support/emulated_tiles.h) where there are none."""

from __future__ import annotations

import pytest
import torch
from orca_kernels.cpu.kernels import NAMES, CpuKernels
from orca_kernels.cpu.library import CpuLibrary
from orca_kernels.cpu.targets import AVX512, processor_flags
from orca_kernels.interface import whole_group
from orca_kernels.quantization import BITS, GROUP, W4A8, QuantizedWeight
from support.cpu_targets import load, tile_target

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
