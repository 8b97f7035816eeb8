"""`StoredIntegers`: the integers of one linear map, decoded from a checkpoint, and their `QuantizedWeight`."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from orca_kernels.quantization import BITS, W8A8, WEIGHT_ONLY, QuantizedWeight

from orca_worker.errors import ModelError


@dataclass(frozen=True, slots=True)
class StoredIntegers:
    """Integers and zero points, both less 2^(bits - 1), so that they are signed."""

    bits: int
    numbers: torch.Tensor
    """[outputs, inputs] int8."""
    scales: torch.Tensor
    """[outputs, groups]."""
    zeros: torch.Tensor | None
    """[outputs, groups] int8; None: all are 0."""
    group: int
    """Inputs of a group; the last one may be smaller."""
    group_of: torch.Tensor | None = None
    """[inputs] group of each input (act-order); None: the first `group` inputs are group 0, and so on."""
    integer_activations: bool = False
    """True if the map quantises its input, too; then it has neither zero points nor act-order."""

    def weight(self) -> QuantizedWeight:
        """Return the weight with the same values; raise ModelError for groups of other sizes."""
        if self.integer_activations:
            return QuantizedWeight(W8A8, self.numbers, self.scales.float(), self.group)
        order, numbers = None, self.numbers
        if self.group_of is not None:
            order = self._order(self.group_of)
        if order is not None:
            numbers = numbers.index_select(1, order)
        quantization = next(name for name in WEIGHT_ONLY if BITS[name] == self.bits)
        zeros = self.zeros if self.zeros is not None and self.zeros.any() else None
        return QuantizedWeight(quantization, numbers, self.scales.float(), self.group, order, zeros)

    def _order(self, group_of: torch.Tensor) -> torch.Tensor | None:
        """Return the inputs sorted by group, None if they are; raise ModelError for groups of other sizes."""
        in_order = torch.arange(len(group_of), device=group_of.device) // self.group
        if torch.equal(group_of, in_order):
            return None
        order = group_of.argsort(stable=True)
        if not torch.equal(group_of[order], in_order):
            raise ModelError(f"g_idx: groups of {self.group} inputs are expected, the last one may be smaller")
        return order


def unpacked(words: torch.Tensor, bits: int, dim: int, part: slice, places: tuple[int, ...] = ()) -> torch.Tensor:
    """Return the integers `part` of dimension `dim`, less 2^(bits - 1), as int8.

    `words` is int32 [rows, columns]; dimension `dim` begins with the word that holds integer `part.start`. `places`:
    where the integers of a word are, from the lowest bits on, relative to its first; default: in order.
    """
    count = 32 // bits
    shape = list(words.shape)
    shape[dim] *= count
    integers = torch.empty(shape, dtype=torch.int8, device=words.device)
    for lowest, place in enumerate(places or range(count)):
        values = (words >> (bits * lowest) & ((1 << bits) - 1)) - (1 << (bits - 1))
        (integers[place::count] if dim == 0 else integers[:, place::count]).copy_(values)
    return integers.narrow(dim, part.start % count, part.stop - part.start)
