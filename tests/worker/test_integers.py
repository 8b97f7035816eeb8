"""Property: what an independent writer packs is what the worker reads, for any shape, part, group size and format."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from orca_worker.errors import ModelError
from orca_worker.quantized_checkpoints.integers import StoredIntegers, unpacked
from orca_worker.quantized_checkpoints.quantization_config import read_weight_format
from orca_worker.quantized_checkpoints.weight_format import MapPart
from support.quantized_writer import Scheme, coded, dequantised, words, written

KINDS = [
    *(("gptq", bits) for bits in (4, 8)),
    *(("gptq_v2", bits) for bits in (4, 8)),
    ("awq", 4),
    *(("pack-quantized", bits) for bits in (4, 8)),
    ("int-quantized", 8),
]


@st.composite
def maps(draw):
    """Return a scheme, a shape in words of eight, and a part of the outputs and of the inputs."""
    kind, bits = draw(st.sampled_from(KINDS))
    group = draw(st.sampled_from([8, 32, 64, 128, -1]))
    symmetric = draw(st.booleans())
    act_order = kind.startswith(("gptq", "pack")) and draw(st.booleans())
    outputs, inputs = 8 * draw(st.integers(1, 4)), 8 * draw(st.integers(1, 20))
    if kind.startswith(("pack", "int")):  # the last word may be padded
        outputs, inputs = outputs - draw(st.integers(0, 7)), inputs - draw(st.integers(0, 7))
    first = draw(st.integers(0, outputs - 1))
    rows = slice(first, draw(st.integers(first + 1, outputs)))
    columns = slice(0, inputs)
    if not act_order and draw(st.booleans()):
        step = 1 if group < 0 else group
        cuts = [*range(0, inputs, step), inputs]
        begin = draw(st.integers(0, len(cuts) - 2))
        columns = slice(cuts[begin], cuts[draw(st.integers(begin + 1, len(cuts) - 1))])
    return Scheme(kind, bits, group, symmetric, act_order), MapPart(outputs, inputs, rows, columns)


@given(maps(), st.integers(0, 1000))
def test_what_is_packed_is_read(drawn, seed):
    scheme, part = drawn
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(part.outputs, part.inputs, generator=generator)
    tensors = written(coded(weight, scheme, generator), scheme)
    value = dequantised(tensors, scheme, part.outputs, part.inputs)
    weight_format = read_weight_format({"quantization_config": scheme.config()}, Path("config.json"))
    expected = {each.name: each for each in weight_format.tensors(part, tensors)}
    assert set(expected) == set(tensors)
    assert all(tuple(tensors[name].shape) == each.shape for name, each in expected.items())
    stored = {name: tensors[name][each.part].clone() for name, each in expected.items()}
    read = weight_format.integers(part, stored).weight()
    assert torch.equal(read.dequantized(torch.float32), value[part.output_part, part.input_part])
    assert read.scales.dtype == torch.float32
    assert read.quantization == f"int{scheme.bits}"


def test_words_are_read_from_any_integer_on():
    rows = [[(3 * place + row) % 16 for place in range(24)] for row in range(2)]
    expected = torch.tensor(rows, dtype=torch.int8) - 8
    read = unpacked(words(rows, 4)[:, 1:], 4, 1, slice(11, 24))
    assert torch.equal(read, expected[:, 11:])


def stored(**fields):
    values = {"numbers": torch.zeros(3, 16, dtype=torch.int8), "scales": torch.ones(3, 2), "zeros": None, "group": 8}
    return StoredIntegers(**{"bits": 4, **values, **fields})


@pytest.mark.parametrize(
    ("bits", "number", "zero"), [(4, 5, 1), (4, 7, -8), (4, -8, 7), (4, 5, 0), (8, 127, -128), (8, -128, 127)]
)
def test_zero_points_stay_beside_the_numbers(bits, number, zero):
    """A difference may have one more bit than a number; zero points that are all 0 are left out."""
    numbers, zeros = (
        torch.full(shape, value, dtype=torch.int8) for shape, value in (((3, 16), number), ((3, 2), zero))
    )
    weight = stored(bits=bits, numbers=numbers, zeros=zeros).weight()
    assert weight.quantization == f"int{bits}"
    assert (weight.zeros is None) == (zero == 0)
    assert torch.equal(weight.numbers, numbers)
    assert (weight.dequantized(torch.float32) == number - zero).all()


def test_groups_of_other_sizes_are_refused():
    group_of = torch.tensor([0] * 9 + [1] * 7)
    with pytest.raises(ModelError, match="g_idx: groups of 8 inputs are expected"):
        stored(group_of=group_of).weight()


def test_inputs_in_order_are_not_reordered():
    assert stored(group_of=torch.arange(16) // 8).weight().order is None
    order = stored(group_of=1 - torch.arange(16) // 8).weight().order
    assert order.tolist() == [*range(8, 16), *range(8)]


def test_numbers_of_maps_that_quantise_their_input_are_unchanged():
    numbers = torch.randint(-128, 128, (3, 5), dtype=torch.int8)
    scales = torch.rand(3, 1, dtype=torch.bfloat16)
    weight = StoredIntegers(8, numbers, scales, None, 8, integer_activations=True).weight()
    assert weight.quantization == "w8a8"
    assert torch.equal(weight.numbers, numbers)
    assert torch.equal(weight.scales, scales.float())
