"""Weight-only quantization: integers of eight bits, with a scale per output and group of 128 inputs.

Symmetric, rounded to nearest: weight = number x scale, scale = the group's largest magnitude / 127.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

GROUP = 128
"""Inputs with a common scale (kScaleGroup of cpu/quantized_linear.h). The last group of a weight may be smaller."""
LARGEST = 127


@dataclass(frozen=True, slots=True)
class QuantizedWeight:
    """A weight W [outputs, inputs] as integers."""

    numbers: torch.Tensor
    """[outputs, inputs] int8, from -127 to 127."""
    scales: torch.Tensor
    """[outputs, groups] float32."""

    def dequantized(self, dtype: torch.dtype) -> torch.Tensor:
        """Return numbers x scales [outputs, inputs], each rounded to `dtype` once."""
        weight = torch.empty(self.numbers.shape, dtype=dtype, device=self.numbers.device)
        for group, (part, numbers) in enumerate(
            zip(torch.split(weight, GROUP, dim=1), torch.split(self.numbers, GROUP, dim=1), strict=True)
        ):
            part.copy_(numbers * self.scales[:, group : group + 1])
        return weight


def quantize(weight: torch.Tensor) -> QuantizedWeight:
    """Return the weight [outputs, inputs] as integers."""
    outputs, inputs = weight.shape
    numbers = torch.empty((outputs, inputs), dtype=torch.int8, device=weight.device)
    scales = torch.empty((outputs, -(-inputs // GROUP)), dtype=torch.float32, device=weight.device)
    # Group by group, to bound peak memory: the intermediate results are float32.
    for group, (values, part) in enumerate(
        zip(torch.split(weight, GROUP, dim=1), torch.split(numbers, GROUP, dim=1), strict=True)
    ):
        wide = values.float()
        scale = wide.abs().amax(dim=1, keepdim=True) / LARGEST
        scales[:, group : group + 1] = scale
        # A group of zeros has scale 0, and a subnormal scale too few bits.
        part.copy_((wide / scale.clamp(min=torch.finfo(torch.float32).tiny)).round())
    return QuantizedWeight(numbers, scales)
