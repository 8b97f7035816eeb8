"""Weights as integers of eight or four bits: weight = (number - zero) x scale, for each output and group of inputs.

int8 and int4 quantise weights only. `quantize` rounds to nearest, in groups of 128 inputs. There the number of the
group's weight with the largest magnitude is the least integer, -128 or -8; so the scale is negative if this weight is
positive. A weight of the opposite sign and nearly the same magnitude gets the largest integer, 127 or 7.

w8a8 and w4a8 quantise the rows x of activations, too, so that products are those of integers with exact sums:
y = sum of (number of x) x (number of W) x (scale of x) x (scale of W). w8a8 has one scale for all inputs of an output,
and one for a row of x; its weights are rounded like keys and values (`quantize_rows`): numbers are from -127 to 127, in
a checkpoint from -128. w4a8 has the weights of int4, and a scale for each of their groups in a row of x. Rows and their
groups are rounded by `quantize_rows`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from orca_kernels.interface import whole_group
from orca_kernels.kv_quantization import quantize_rows

GROUP = 128
"""Inputs with a common scale in `quantize` of weights only. The last group of a weight may be smaller."""
WEIGHT_ONLY = ("int8", "int4")
W8A8, W4A8 = "w8a8", "w4a8"
BITS: Mapping[str, int] = {"int8": 8, "int4": 4, W8A8: 8, W4A8: 4}
"""Bits of a number."""
INTEGER_ACTIVATIONS = (W8A8, W4A8)
"""Quantizations of weights and activations."""
OUTPUTS_AT_ONCE = 1024
"""Outputs that `quantize` converts together, to bound peak memory."""


@dataclass(frozen=True, slots=True)
class QuantizedWeight:
    """A weight W [outputs, inputs] as integers, by a `quantization` of BITS."""

    quantization: str
    numbers: torch.Tensor
    """[outputs, inputs] int8, also numbers of four bits."""
    scales: torch.Tensor
    """[outputs, groups] float32."""
    group: int = GROUP
    """Inputs with a common scale, a multiple of GROUP_MULTIPLE (interface.py). The last group may be smaller. For w8a8
    there is one group."""
    order: torch.Tensor | None = None
    """[inputs] int64: column i of `numbers` is input order[i]. None, as always for w8a8: the inputs in their order."""
    zeros: torch.Tensor | None = None
    """[outputs, groups] int8: zero points. None, as always for w8a8: all are 0."""

    def dequantized(self, dtype: torch.dtype) -> torch.Tensor:
        """Return the weight [outputs, inputs], each value rounded to `dtype` once, with the inputs in their order."""
        weight = torch.empty(self.numbers.shape, dtype=dtype, device=self.numbers.device)
        for group, (part, numbers) in enumerate(
            zip(torch.split(weight, self.group, dim=1), torch.split(self.numbers, self.group, dim=1), strict=True)
        ):
            zeros = 0 if self.zeros is None else self.zeros[:, group : group + 1].float()
            part.copy_((numbers - zeros) * self.scales[:, group : group + 1])
        if self.order is None:
            return weight
        return torch.empty_like(weight).index_copy_(1, self.order, weight)


def quantize(weight: torch.Tensor, quantization: str) -> QuantizedWeight:
    """Return the weight [outputs, inputs] as integers, by a quantization of BITS."""
    outputs, inputs = weight.shape
    if quantization == W8A8:
        parts = [quantize_rows(rows) for rows in torch.split(weight, OUTPUTS_AT_ONCE)]
        numbers, scales = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
        return QuantizedWeight(W8A8, numbers, scales.unsqueeze(1), whole_group(inputs))
    least = -(1 << (BITS[quantization] - 1))
    numbers = torch.empty((outputs, inputs), dtype=torch.int8, device=weight.device)
    scales = torch.empty((outputs, -(-inputs // GROUP)), dtype=torch.float32, device=weight.device)
    # Group by group, to bound peak memory: the intermediate results are float32.
    for group, (values, part) in enumerate(
        zip(torch.split(weight, GROUP, dim=1), torch.split(numbers, GROUP, dim=1), strict=True)
    ):
        wide = values.float()
        scale = wide.gather(1, wide.abs().argmax(dim=1, keepdim=True)) / least
        scales[:, group : group + 1] = scale
        # A group of zeros has scale 0, and a subnormal scale too few bits.
        divisor = torch.where(scale.abs() < torch.finfo(torch.float32).tiny, torch.finfo(torch.float32).tiny, scale)
        part.copy_((wide / divisor).round().clamp(least, -least - 1))
    return QuantizedWeight(quantization, numbers, scales)
