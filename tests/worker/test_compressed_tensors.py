"""compressed-tensors: the tensors that say more than the integers."""

from __future__ import annotations

import pytest
import torch
from orca_worker.errors import ModelError
from orca_worker.quantized_checkpoints.compressed_tensors import PackedFormat
from orca_worker.quantized_checkpoints.weight_format import MapPart

PART = MapPart.whole(2, 16)


def stored(**tensors):
    return {
        "weight_packed": torch.tensor([[0x76543210, 0x76543210]] * 2, dtype=torch.int32),
        "weight_scale": torch.ones(2, 2),
        "weight_shape": torch.tensor([2, 16]),
        **tensors,
    }


def packed(**fields):
    return PackedFormat(**{"bits": 4, "group_size": 8, "symmetric": True, "per_tensor": False, **fields})


def test_integers_are_stored_plus_eight():
    weight = packed().integers(PART, stored()).weight()
    assert weight.dequantized(torch.float32)[1].tolist() == [*range(-8, 0)] * 2
    assert weight.quantization == "int4"


def test_unused_groups_of_inputs_are_ignored():
    unused = torch.full((16,), -1, dtype=torch.int32)
    assert packed().integers(PART, stored(weight_g_idx=unused)).weight().order is None


def test_another_shape_than_the_configuration_has():
    with pytest.raises(ModelError, match=r"weight_shape: \[16, 2\], \[2, 16\] is expected"):
        packed().integers(PART, stored(weight_shape=torch.tensor([16, 2])))


def test_packed_zero_points_of_a_tensor_are_refused():
    with pytest.raises(ModelError, match="strategy 'tensor' is not supported: zero points per group or channel are"):
        list(packed(group_size=-1, symmetric=False, per_tensor=True).tensors(PART, ()))
