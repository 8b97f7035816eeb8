"""Adapters (LoRA) of linear maps: requests with different adapters, or none, share each iteration.

A linear map is computed for all rows at once, and then the low-rank product B A x of each adapter for its rows only.
Both factors are linear maps of the kernels, so that a row's result depends on no other row where the model's does not.
Adapters that are loaded while the model runs come to the same maps, between two iterations (changing_adapters.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from orca_kernels.device_copies import to_device
from orca_kernels.interface import Kernels, LinearMap
from torch.nn import functional

from orca_worker.adapter_files import DOWN, UP, WEIGHTS, Adapter
from orca_worker.checkpoint import Checkpoint
from orca_worker.errors import ModelError

LowRank = dict[int, tuple[LinearMap, LinearMap]]
"""A and B of a map, by the number of their adapter."""
Groups = Sequence[tuple[int, torch.Tensor]]
"""Number of each adapter that an iteration uses, and its rows, int64 on the device."""


@dataclass(frozen=True, slots=True)
class AdapterRows:
    """The rows of an iteration that use adapters: among all tokens, and among those that the head reads."""

    num_tokens: int
    of_tokens: Groups
    of_last: Groups


def adapter_rows(adapter: np.ndarray, last: np.ndarray | None, device: torch.device) -> AdapterRows | None:
    """Return the rows of `adapter` [S], the number of each token's adapter, 0 for none; None if no token has one.

    `last` [K]: the tokens that the head reads, None for all.
    """
    if not adapter.any():
        return None
    numbers = [number for number in np.unique(adapter).tolist() if number]
    of_last = adapter if last is None else adapter[last]
    rows = to_device(device, *(np.flatnonzero(of == number) for of in (adapter, of_last) for number in numbers))
    found = list(zip(2 * numbers, rows, strict=True))
    of_read = [(number, places) for number, places in found[len(numbers) :] if len(places)]
    return AdapterRows(len(adapter), found[: len(numbers)], of_read)


class ActiveAdapters:
    """The rows of the iteration that is computed, which every adapted map of a partition reads."""

    def __init__(self) -> None:
        self._rows: AdapterRows | None = None

    def select(self, rows: AdapterRows | None) -> None:
        """Set the rows before the layers are computed."""
        self._rows = rows

    def of(self, x: torch.Tensor) -> Groups:
        """Return the rows of a map's input, which has all tokens, or those that the head reads."""
        if self._rows is None:
            return ()
        return self._rows.of_tokens if len(x) == self._rows.num_tokens else self._rows.of_last


class AdaptedLinear:
    """Implements `orca_kernels.interface.LinearMap`: a map of the model, and its low-rank maps by adapter."""

    def __init__(self, base: LinearMap, low_rank: LowRank, active: ActiveAdapters) -> None:
        self.fuses_add = base.fuses_add
        self._base = base
        self._low_rank = low_rank
        self._active = active

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """See LinearMap."""
        return self._adapt(x, self._base(x))

    def gelu_tanh(self, x: torch.Tensor) -> torch.Tensor:
        """See LinearMap: rows with an adapter are computed again, because the map's own GeLU comes too early."""
        y = self._base.gelu_tanh(x)
        for number, rows in self._active.of(x):
            if number in self._low_rank:
                some = x.index_select(0, rows)
                y[rows] = functional.gelu(self._add(number, some, self._base(some)), approximate="tanh")
        return y

    def add(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """See LinearMap."""
        return self._adapt(x, self._base.add(x, residual))

    def _adapt(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        for number, rows in self._active.of(x):
            if number in self._low_rank:
                y[rows] = self._add(number, x.index_select(0, rows), y.index_select(0, rows))
        return y

    def _add(self, number: int, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        down, up = self._low_rank[number]
        return up.add(down(x), y)


class _Place(NamedTuple):
    """A map of the model: see `Adapters.adapt`."""

    maps: Sequence[tuple[str, int, slice]]
    inputs: int
    input_part: slice


class Adapters:
    """Reads the parts of adapters that a rank needs, and adapts the model's maps with them.

    `adapters`: those of the start, numbered from 1. `changing`: others come and go by `add` and `remove`.
    """

    def __init__(
        self,
        adapters: Sequence[Adapter],
        kernels: Kernels,
        dtype: torch.dtype,
        device: torch.device,
        changing: bool = False,
    ) -> None:
        self.active = ActiveAdapters()
        self._kernels = kernels
        self._dtype, self._device = dtype, device
        self._changing = changing
        self._adapted: list[tuple[_Place, LowRank]] = []
        """Every map of the model, if adapters change."""
        self._adapters = [(adapter, self._open(adapter)) for adapter in adapters]

    def adapt(
        self, base: LinearMap, maps: Sequence[tuple[str, int, slice]], inputs: int, input_part: slice
    ) -> LinearMap:
        """Return `base` with the low-rank maps of all adapters that have one, or `base` itself if it stays without.

        `maps`: for each part of the output, the module's name, its number of outputs, and which of them. `inputs`: of
        each module, of which this rank has `input_part`.
        """
        place, low_rank = _Place(maps, inputs, input_part), {}
        for number, (adapter, checkpoint) in enumerate(self._adapters, 1):
            if (pair := self._pair(adapter, checkpoint, place)) is not None:
                low_rank[number] = pair
        if self._changing:
            self._adapted.append((place, low_rank))
        return AdaptedLinear(base, low_rank, self.active) if low_rank or self._changing else base

    def add(self, number: int, adapter: Adapter) -> None:
        """Adapt the model's maps with one more adapter; raise ModelError, and change nothing then."""
        checkpoint = self._open(adapter)
        pairs = [(low_rank, self._pair(adapter, checkpoint, place)) for place, low_rank in self._adapted]
        for low_rank, pair in pairs:
            if pair is not None:
                low_rank[number] = pair

    def remove(self, number: int) -> None:
        """Free the maps of an adapter that came by `add`."""
        for _, low_rank in self._adapted:
            low_rank.pop(number, None)

    def _open(self, adapter: Adapter) -> Checkpoint:
        return Checkpoint(adapter.folder, self._dtype, self._device, lambda _: None, WEIGHTS)

    def _pair(self, adapter: Adapter, checkpoint: Checkpoint, place: _Place) -> tuple[LinearMap, LinearMap] | None:
        """Return A and B of an adapter for one map, None if it does not change the map."""
        factors = _factors(adapter, checkpoint, *place)
        if factors is None:
            return None
        down, up = factors
        return self._kernels.linear(down, None), self._kernels.linear(up, None)


def _factors(
    adapter: Adapter, checkpoint: Checkpoint, maps: Sequence[tuple[str, int, slice]], inputs: int, input_part: slice
) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Return A [modules x r, inputs of the rank] and scale x B [outputs of the rank, modules x r]; None without any.

    The factors A of several modules are one map; B has zeros where a module's output does not depend on another's A.
    """
    modules = [name for name in dict.fromkeys(name for name, _, _ in maps) if name in adapter.tensors]
    if not modules:
        return None
    down = [
        checkpoint.read(f"{adapter.tensors[name]}.{DOWN}", (adapter.rank, inputs), (slice(None), input_part))
        for name in modules
    ]
    parts = []
    for name, outputs, part in maps:
        rows = checkpoint.empty(len(range(*part.indices(outputs))), len(modules) * adapter.rank).zero_()
        if name in adapter.tensors:
            start = modules.index(name) * adapter.rank
            up = checkpoint.read(f"{adapter.tensors[name]}.{UP}", (outputs, adapter.rank), (part,))
            if not up.mul_(adapter.scale).isfinite().all():
                raise ModelError(f"{adapter.folder}: the weights of {name} times lora_alpha exceed {up.dtype}")
            rows[:, start : start + adapter.rank] = up
        parts.append(rows)
    return torch.cat(down), torch.cat(parts)
