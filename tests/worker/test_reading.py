"""Maps of the same input become one map where their weights can be joined."""

from __future__ import annotations

import torch
from orca_kernels.quantization import QuantizedWeight
from orca_kernels.reference import ReferenceLinear
from orca_worker.layers import AdjacentMaps
from orca_worker.quantized_checkpoints.reading import joined
from support.linear_maps import assert_one_product_gives_both


def quantized(quantization="int4", outputs=2, group=8, order=None, zero=None):
    numbers, scales = torch.randint(-8, 8, (outputs, 16), dtype=torch.int8), torch.rand(outputs, -(-16 // group))
    zeros = None if zero is None else torch.full(scales.shape, zero, dtype=torch.int8)
    return QuantizedWeight(quantization, numbers, scales, group, order, zeros)


def test_quantised_weights_of_the_same_groups_are_joined():
    order = torch.randperm(16)
    for weights in (
        [quantized(), quantized(outputs=3), quantized()],
        [quantized(), quantized(outputs=3, zero=-8), quantized(zero=7)],
        [quantized(order=order), quantized(order=order.clone())],
    ):
        ((weight, count),) = joined(weights)
        assert count == len(weights)
        expected = torch.cat([each.dequantized(torch.float32) for each in weights])
        assert torch.equal(weight.dequantized(torch.float32), expected)
        assert weight.quantization == "int4"
        assert (weight.zeros is None) == all(each.zeros is None for each in weights)


def test_other_weights_stay_apart():
    order, plain = torch.randperm(16), torch.randn(2, 16)
    weights = [
        quantized(),
        quantized(order=order),
        quantized(order=order.flip(0)),
        quantized(group=16),
        quantized("int8", group=16),
        plain,
        plain + 1,
    ]
    found = joined(weights)
    assert [count for _, count in found] == [1, 1, 1, 1, 1, 2]
    assert torch.equal(found[-1][0], torch.cat([plain, plain + 1]))


def test_maps_side_by_side():
    weights, x, residual = [torch.randn(2, 5), torch.randn(3, 5)], torch.randn(4, 5), torch.randn(4, 5)
    adjacent = AdjacentMaps([ReferenceLinear(weight, None) for weight in weights])
    whole = ReferenceLinear(torch.cat(weights), None)
    torch.testing.assert_close(adjacent(x), whole(x))
    torch.testing.assert_close(adjacent.gelu_tanh(x), whole.gelu_tanh(x))
    assert_one_product_gives_both(adjacent, x)
    torch.testing.assert_close(adjacent.add(x, residual.clone()), whole.add(x, residual))
