"""What every format checks: bits, groups, words, and where tensor parallelism may cut."""

from __future__ import annotations

import re

import pytest
from orca_worker.errors import ModelError
from orca_worker.quantized_checkpoints.gptq import GptqFormat
from orca_worker.quantized_checkpoints.weight_format import MapPart, errors_of


def gptq(bits=4, group_size=128):
    return GptqFormat(bits=bits, group_size=group_size, less_one=False)


@pytest.mark.parametrize("bits", [-4, 0, 2, 3, 5, 16])
def test_other_bits_are_refused(bits):
    with pytest.raises(ModelError, match=f"bits {bits}: weights of 4 and 8 bits are supported, serve the unquantised"):
        gptq(bits)


@pytest.mark.parametrize("group_size", [-2, 0, 1, 12, 100])
def test_other_group_sizes_are_refused(group_size):
    with pytest.raises(ModelError, match=f"group_size {group_size}: a multiple of 8, or -1"):
        gptq(group_size=group_size)


def test_groups_of_a_part():
    part = MapPart(16, 300, slice(0, 16), slice(128, 300))
    assert gptq().groups(part) == slice(1, 3)
    assert gptq(group_size=-1).groups(part) == slice(0, 1)
    assert gptq(group_size=-1).num_groups(300) == 1
    for cut in (slice(0, 100), slice(100, 300)):
        with pytest.raises(ModelError, match=f"inputs {cut.start} to {cut.stop} of 300 cut a group of 128 inputs"):
            gptq().groups(MapPart(16, 300, slice(0, 16), cut))


def test_tensor_parallel_sizes_that_fit_are_named():
    gptq().check_tensor_parallel(1536, 4)
    gptq(group_size=-1).check_tensor_parallel(1000, 3)
    message = "tensor-parallel-size 8 cuts the 1536 inputs inside a group of 128: 1, 2, 3, 4, 6 would not"
    with pytest.raises(ModelError, match=message):
        gptq().check_tensor_parallel(1536, 8)


def test_words_must_be_full():
    with pytest.raises(ModelError, match="12 inputs are not a multiple of 8, the integers of a word"):
        list(gptq().tensors(MapPart.whole(8, 12), ()))
    with pytest.raises(ModelError, match="6 outputs are not a multiple of 4"):
        list(gptq(bits=8).tensors(MapPart.whole(6, 12), ()))


def test_errors_name_the_map():
    with pytest.raises(ModelError, match=re.escape("m: map a.b: wrong")), errors_of("m: map a.b"):
        raise ModelError("wrong")
