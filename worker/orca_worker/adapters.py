"""Adapters (LoRA) of linear maps: requests with different adapters, or none, share each iteration.

A linear map is computed for all rows at once, and then the low-rank product B A x of each adapter for its rows only.
Both factors are linear maps of the kernels, so that a row's result depends on no other row where the model's does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from orca_kernels.device_copies import to_device
from orca_kernels.interface import Kernels, LinearMap
from torch.nn import functional

from orca_worker.adapter_files import DOWN, UP, WEIGHTS, Adapter
from orca_worker.checkpoint import Checkpoint
from orca_worker.errors import ModelError

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

    def __init__(
        self, base: LinearMap, low_rank: dict[int, tuple[LinearMap, LinearMap]], active: ActiveAdapters
    ) -> None:
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


class Adapters:
    """Reads the parts of adapters that a rank needs, and adapts the model's maps with them."""

    def __init__(self, adapters: Sequence[Adapter], kernels: Kernels, dtype: torch.dtype, device: torch.device) -> None:
        self.active = ActiveAdapters()
        self._kernels = kernels
        self._adapters = [
            (adapter, Checkpoint(adapter.folder, dtype, device, lambda _: None, WEIGHTS)) for adapter in adapters
        ]

    def adapt(
        self, base: LinearMap, maps: Sequence[tuple[str, int, slice]], inputs: int, input_part: slice
    ) -> LinearMap:
        """Return `base` with the low-rank maps of all adapters that have one, or `base` itself.

        `maps`: for each part of the output, the module's name, its number of outputs, and which of them. `inputs`: of
        each module, of which this rank has `input_part`.
        """
        low_rank = {}
        for number, (adapter, checkpoint) in enumerate(self._adapters, 1):
            if factors := _factors(adapter, checkpoint, maps, inputs, input_part):
                down, up = factors
                low_rank[number] = (self._kernels.linear(down, None), self._kernels.linear(up, None))
        return AdaptedLinear(base, low_rank, self.active) if low_rank else base


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
