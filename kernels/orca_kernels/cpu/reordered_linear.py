"""`ReorderedLinear`: a linear map whose weight has its inputs in another order than its argument."""

from __future__ import annotations

import torch

from orca_kernels.interface import LinearMap


class ReorderedLinear:
    """A `LinearMap` whose weight has its inputs in another order than x: input i is column order[i] of x."""

    def __init__(self, linear_map: LinearMap, order: torch.Tensor) -> None:
        self._map = linear_map
        self._order = order

    @property
    def fuses_add(self) -> bool:
        """See LinearMap."""
        return self._map.fuses_add

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """See LinearMap."""
        return self._map(x.index_select(1, self._order))

    def gelu_tanh(self, x: torch.Tensor) -> torch.Tensor:
        """See LinearMap."""
        return self._map.gelu_tanh(x.index_select(1, self._order))

    def with_gelu_tanh(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """See LinearMap."""
        return self._map.with_gelu_tanh(x.index_select(1, self._order))

    def add(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """See LinearMap."""
        return self._map.add(x.index_select(1, self._order), residual)
