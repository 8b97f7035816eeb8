"""Adapters (LoRA) of linear maps: requests with different adapters, or none, share each iteration.

A linear map is computed for all rows at once, and then the low-rank product B A x of each adapter for its rows only
(`orca_kernels.low_rank.LowRank`), so that a row's result depends on no other row where the model's does not.
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
from orca_kernels.low_rank import AdapterRows, LowRank

from orca_worker.adapter_files import DOWN, UP, WEIGHTS, Adapter
from orca_worker.checkpoint import Checkpoint
from orca_worker.errors import ModelError


@dataclass(frozen=True, slots=True)
class IterationAdapters:
    """The adapters of an iteration's rows: of all tokens, and of those that the head reads."""

    of_tokens: AdapterRows
    of_last: AdapterRows


def iteration_adapters(adapter: np.ndarray, last: np.ndarray | None, device: torch.device) -> IterationAdapters | None:
    """Return the adapters of `adapter` [S], the number of each token's adapter, 0 for none; None if no token has one.

    `last` [K]: the tokens that the head reads, None for all.
    """
    if not adapter.any():
        return None
    numbers = [number for number in np.unique(adapter).tolist() if number]
    inputs = (adapter, adapter if last is None else adapter[last])
    arrays = [[of, *(np.flatnonzero(of == number) for number in numbers)] for of in inputs]
    found = to_device(device, *arrays[0], *arrays[1])
    of_tokens, of_last = (
        AdapterRows(of[0], [(number, rows) for number, rows in zip(numbers, of[1:], strict=True) if len(rows)])
        for of in (found[: len(numbers) + 1], found[len(numbers) + 1 :])
    )
    return IterationAdapters(of_tokens, of_last)


class ActiveAdapters:
    """The adapters of the iteration that is computed, which every adapted map of a partition reads."""

    def __init__(self) -> None:
        self._rows: IterationAdapters | None = None

    def select(self, rows: IterationAdapters | None) -> None:
        """Set the adapters before the layers are computed."""
        self._rows = rows

    def of(self, x: torch.Tensor) -> AdapterRows | None:
        """Return the adapters of a map's input, which has all tokens, or those that the head reads; None for none."""
        if self._rows is None:
            return None
        return self._rows.of_tokens if len(x) == len(self._rows.of_tokens.adapters) else self._rows.of_last


class AdaptedLinear:
    """Implements `orca_kernels.interface.LinearMap`: a map of the model, and the products of adapters."""

    def __init__(self, base: LinearMap, low_rank: LowRank, active: ActiveAdapters) -> None:
        self.fuses_add = base.fuses_add
        self._base = base
        self._low_rank = low_rank
        self._active = active

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """See LinearMap."""
        return self._adapt(x, self._base(x))

    def gelu_tanh(self, x: torch.Tensor) -> torch.Tensor:
        """See LinearMap."""
        return self._base.gelu_tanh(x) if self._rows_of(x) is None else self.with_gelu_tanh(x)[1]

    def with_gelu_tanh(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """See LinearMap: of rows with an adapter GeLU is computed again, because the map's own comes too early."""
        y, activated = self._base.with_gelu_tanh(x)
        if (rows := self._rows_of(x)) is not None:
            self._low_rank.add(x, y, rows, activated)
        return y, activated

    def add(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """See LinearMap."""
        return self._adapt(x, self._base.add(x, residual))

    def _adapt(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        if (rows := self._rows_of(x)) is not None:
            self._low_rank.add(x, y, rows)
        return y

    def _rows_of(self, x: torch.Tensor) -> AdapterRows | None:
        """Return the adapters of the rows, None if none of them has one or no adapter changes this map."""
        return self._active.of(x) if len(self._low_rank) else None


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
        """The maps that adapters change, or may change."""
        self._adapters = [(adapter, self._open(adapter)) for adapter in adapters]

    def adapt(
        self, base: LinearMap, maps: Sequence[tuple[str, int, slice]], inputs: int, input_part: slice
    ) -> LinearMap:
        """Return `base` with the low-rank maps of all adapters that have one, or `base` itself if it stays without.

        `maps`: for each part of the output, the module's name, its number of outputs, and which of them. `inputs`: of
        each module, of which this rank has `input_part`.
        """
        place = _Place(maps, inputs, input_part)
        factors = [_factors(adapter, checkpoint, place) for adapter, checkpoint in self._adapters]
        if not any(factors) and not self._changing:
            return base
        low_rank = self._kernels.low_rank(len(range(*input_part.indices(inputs))))
        for number, pair in enumerate(factors, 1):
            if pair is not None:
                low_rank.put(number, *pair)
        self._adapted.append((place, low_rank))
        return AdaptedLinear(base, low_rank, self.active)

    @property
    def has_maps(self) -> bool:
        """False if no adapter changes a map of this partition, now and later."""
        return bool(self._adapted)

    @property
    def recordable(self) -> bool:
        """False if a replay would repeat the rows of the recording's adapters."""
        return all(low_rank.recordable for _, low_rank in self._adapted)

    def add(self, number: int, adapter: Adapter) -> None:
        """Adapt the model's maps with one more adapter; raise ModelError or torch's error, and change nothing then.

        Recordings of iterations with adapters become invalid.
        """
        checkpoint = self._open(adapter)
        try:
            for place, low_rank in self._adapted:
                if (pair := _factors(adapter, checkpoint, place)) is not None:
                    low_rank.put(number, *pair)
        except BaseException:
            self.remove(number)
            raise

    def remove(self, number: int) -> None:
        """Free the maps of an adapter that came by `add`. Recordings of iterations with adapters become invalid."""
        for _, low_rank in self._adapted:
            low_rank.remove(number)

    def _open(self, adapter: Adapter) -> Checkpoint:
        return Checkpoint(adapter.folder, self._dtype, self._device, lambda _: None, WEIGHTS)


def _factors(adapter: Adapter, checkpoint: Checkpoint, place: _Place) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Return A [modules x r, inputs of the rank] and scale x B [outputs of the rank, modules x r] for one map.

    None if the adapter does not change the map. The factors A of several modules are one map; B has zeros where a
    module's output does not depend on another's A.
    """
    maps, inputs, input_part = place
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
