"""GPTQ: zero points of both versions, and act-order."""

from __future__ import annotations

import pytest
import torch
from orca_worker.errors import ModelError
from orca_worker.quantized_checkpoints.gptq import GptqFormat, groups_of_inputs
from orca_worker.quantized_checkpoints.weight_format import MapPart

PART = MapPart.whole(8, 16)


def read(less_one, zeros, bits=4):
    """Return the weight of a map whose integers are all 0, from one word of zero points per group."""
    words = 16 * bits // 32
    stored = {
        "qweight": torch.zeros(words, 8, dtype=torch.int32),
        "qzeros": torch.tensor(zeros, dtype=torch.int64).to(torch.int32),
        "scales": torch.ones(2, 8),
    }
    return GptqFormat(bits=bits, group_size=8, less_one=less_one).integers(PART, stored).weight()


def test_the_first_version_stores_zero_points_less_one():
    first = read(True, [[0x76543210], [0x77777777]]).dequantized(torch.float32)
    second = read(False, [[0x87654321], [0x88888888 - (1 << 32)]]).dequantized(torch.float32)
    assert torch.equal(first, second)
    assert first[:, 0].tolist() == [-1, -2, -3, -4, -5, -6, -7, -8]


def test_a_zero_point_of_0_is_ambiguous_in_the_first_version():
    """Writers differ in whether the borrow of the subtraction reaches the next zero point."""
    with pytest.raises(ModelError, match="qzeros: a zero point of 0 is ambiguous in checkpoint_format gptq"):
        read(True, [[0x7FFFFFF7], [0x77777777]])
    assert read(False, [[0], [0]]).dequantized(torch.float32)[0, 0] == 0


def test_act_order_cannot_be_divided_over_ranks():
    gptq = GptqFormat(bits=4, group_size=8, less_one=True)
    half = MapPart(8, 16, slice(0, 8), slice(8, 16))
    ordered, unordered = torch.arange(16) // 8, torch.arange(16) % 2
    assert groups_of_inputs(gptq, half, ordered, "g_idx").tolist() == [0] * 8
    assert groups_of_inputs(gptq, PART, unordered, "g_idx").tolist() == unordered.tolist()
    assert groups_of_inputs(gptq, half, None, "g_idx") is None
    with pytest.raises(ModelError, match="g_idx: act-order spreads the groups over the ranks: set tensor-"):
        groups_of_inputs(gptq, half, unordered, "g_idx")


@pytest.mark.parametrize("value", [-1, 2, 1 << 30])
def test_groups_that_do_not_exist(value):
    gptq = GptqFormat(bits=4, group_size=8, less_one=True)
    with pytest.raises(ModelError, match="g_idx: groups from 0 to 1 are expected"):
        groups_of_inputs(gptq, PART, torch.full((16,), value), "g_idx")
