"""`CopiedLikeliest`: the largest output of each row by cpu/likeliest.h, over a copy of the weight in eight bits."""

from __future__ import annotations

import torch

from orca_kernels.cpu.calls import Function
from orca_kernels.cpu.panel_linear import PANEL, PanelLinear, padded, pointer
from orca_kernels.cpu.panel_memory import PanelMemory

LARGEST_NORM = 1e18
"""kMostNorm of cpu/likeliest.h."""
WORD_INPUTS = 4
"""kWordInputs of cpu/integer_linear.h."""
PART = 6
"""At most one of so many outputs is computed for a block of rows, on average. More take longer than the copy saves."""
PAUSE = 64
"""Calls that are not tried after one that was not decided: each wastes the reading of the copy."""


class CopiedLikeliest:
    """A `Likeliest` over a copy of the weight of `linear`."""

    def __init__(self, linear: PanelLinear, find: Function, copy: tuple[torch.Tensor, ...], most_rows: int) -> None:
        """`copy`: numbers, scales, errors and norms by `copied`; more than `most_rows` rows are not decided."""
        self._linear = linear
        self._find = find
        self._copy = copy
        self.most_rows = most_rows
        self.part = PART
        self.pause = 0

    def __call__(self, x: torch.Tensor) -> torch.Tensor | None:
        """See Likeliest."""
        rows, (outputs, inputs) = len(x), self._linear.shape
        if rows > self.most_rows:
            return None
        if self.pause:
            self.pause -= 1
            return None
        x = x.contiguous()
        places, decided = torch.empty(rows, dtype=torch.int64), torch.empty(1, dtype=torch.int64)
        y = torch.empty((rows, outputs), dtype=x.dtype)
        tensors = (x, *self._linear.panels, *self._copy, y, places, decided)
        most = max(PANEL, padded(outputs) // self.part)
        self._find(*map(pointer, tensors), rows, inputs, outputs, most)
        if decided.item():
            return places
        self.pause = PAUSE
        return None


def copied(make: Function, weight: torch.Tensor, memory: PanelMemory) -> tuple[torch.Tensor, ...] | None:
    """Return the numbers, scales, errors and norms of a copy of a weight [outputs, inputs], by the function `make`.

    None if the weight has an infinity, NaN, or larger numbers than any checkpoint.
    """
    outputs, inputs = weight.shape
    weight, steps = weight.contiguous(), -(-inputs // WORD_INPUTS)
    numbers = memory.empty(padded(outputs) * steps, torch.int32)
    scales, errors, norms = (torch.zeros(padded(outputs)) for _ in range(3))
    copy = numbers, scales, errors, norms
    make(weight.data_ptr(), *(tensor.data_ptr() for tensor in copy), inputs, outputs)
    return copy if bool(((errors < LARGEST_NORM) & (norms < LARGEST_NORM)).all()) else None
