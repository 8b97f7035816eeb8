"""Reads a rank's part of a quantised linear map from a checkpoint, and joins maps of the same input."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from orca_kernels.quantization import QuantizedWeight

from orca_worker.checkpoint import Scope
from orca_worker.quantized_checkpoints.weight_format import MapPart, WeightFormat, errors_of

Weight = torch.Tensor | QuantizedWeight
"""A weight [outputs, inputs], plain or quantised."""


def read_weight(weight_format: WeightFormat, scope: Scope, part: MapPart) -> QuantizedWeight:
    """Return the part of a map whose tensors are directly in `scope`.

    Raises ModelError, with the map's name, for a missing tensor, another shape or dtype, and invalid values.
    """
    with errors_of(scope.place):
        tensors = list(weight_format.tensors(part, {name for name in weight_format.optional if name in scope}))
    stored = {each.name: scope.read_stored(each.name, each.shape, each.part, each.dtypes) for each in tensors}
    with errors_of(scope.place):
        return weight_format.integers(part, stored).weight()


def joined(weights: Sequence[Weight]) -> list[tuple[Weight, int]]:
    """Join successive weights of the same input along their outputs; return each with the number of its weights.

    Plain weights join with plain ones, and weights of one quantization if they have the same groups of inputs in the
    same order.
    """
    runs: list[list[Weight]] = []
    for weight in weights:
        if runs and _join(runs[-1][0], weight):
            runs[-1].append(weight)
        else:
            runs.append([weight])
    return [(_concatenated(run), len(run)) for run in runs]


def _join(first: Weight, second: Weight) -> bool:
    if not isinstance(first, QuantizedWeight) or not isinstance(second, QuantizedWeight):
        return type(first) is type(second)
    if (first.quantization, first.group) != (second.quantization, second.group):
        return False
    if first.order is None or second.order is None:
        return first.order is second.order
    return torch.equal(first.order, second.order)


def _concatenated(run: Sequence[Weight]) -> Weight:
    plain = [weight for weight in run if isinstance(weight, torch.Tensor)]
    quantized = [weight for weight in run if isinstance(weight, QuantizedWeight)]
    if len(run) == 1 or plain:
        return run[0] if len(run) == 1 else torch.cat(plain)
    zeros = None
    if any(weight.zeros is not None for weight in quantized):
        zeros = torch.cat([_zeros_of(weight) for weight in quantized])
    return replace(
        quantized[0],
        numbers=torch.cat([weight.numbers for weight in quantized]),
        scales=torch.cat([weight.scales for weight in quantized]),
        zeros=zeros,
    )


def _zeros_of(weight: QuantizedWeight) -> torch.Tensor:
    return torch.zeros_like(weight.scales, dtype=torch.int8) if weight.zeros is None else weight.zeros
