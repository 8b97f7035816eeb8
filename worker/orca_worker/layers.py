"""Building blocks of the models, created by `Parts` (models/parts.py).

All but `PagedAttention` get the tokens of all requests of the iteration as one [S, H] tensor (selective batching, the
paper, section 3.2). Column-parallel maps are `LinearMap`s of the kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from orca_kernels import interface
from orca_kernels.interface import AnyPools, Attention, Kernels, LinearMap, Pools, RaggedBatch, Rotation
from orca_kernels.likeliest import Likeliest
from orca_kernels.reference import ReferenceAttention
from torch.nn import functional

from orca_worker.residual import Residual
from orca_worker.rope import Rope, inverse_frequencies
from orca_worker.tensor_parallel_group import TensorParallelGroup


class AdjacentMaps:
    """Implements `orca_kernels.interface.LinearMap`: the outputs of several maps of the same input, side by side."""

    fuses_add = False

    def __init__(self, maps: Sequence[LinearMap]) -> None:
        self._maps = maps

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """See LinearMap."""
        return torch.cat([each(x) for each in self._maps], dim=1)

    def gelu_tanh(self, x: torch.Tensor) -> torch.Tensor:
        """See LinearMap."""
        return torch.cat([each.gelu_tanh(x) for each in self._maps], dim=1)

    def with_gelu_tanh(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """See LinearMap."""
        outputs, activated = zip(*(each.with_gelu_tanh(x) for each in self._maps), strict=True)
        return torch.cat(outputs, dim=1), torch.cat(activated, dim=1)

    def add(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """See LinearMap."""
        return residual + self(x)


class Norm:
    """A norm of rows [S, ...] over the last dimension."""

    def __init__(self, kernels: Kernels, operation: Callable[..., torch.Tensor], norm: interface.Norm) -> None:
        """`operation`: that of the kernels which `norm` names."""
        self._kernels = kernels
        self._operation = operation
        self._norm = norm

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return the norm of x."""
        return self._operation(x, *self._norm.arguments)

    def of(self, residual: Residual) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the residual's total [S, H], and its norm; the residual may be overwritten."""
        if residual.addend is None:
            return residual.hidden, self(residual.hidden)
        return self._kernels.add_and_norm(residual.hidden, residual.addend, residual.bias, self._norm)


class RowParallelLinear:
    """x W^T + b, split over the ranks by inputs; the ranks' results are summed."""

    def __init__(self, linear_map: LinearMap, bias: torch.Tensor | None, group: TensorParallelGroup) -> None:
        """`bias` [outputs] is added to the ranks' sum; None if `linear_map` adds the bias (with one rank)."""
        self.map = linear_map
        self.bias = bias
        self.group = group

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return [S, outputs], the same on every rank."""
        y = self.group.sum(self.map(x))
        return y if self.bias is None else y + self.bias

    def add(self, x: torch.Tensor, hidden: torch.Tensor) -> Residual:
        """Return hidden [S, outputs] plus the map's output; hidden may be overwritten.

        The sum is computed at once if the product does it, otherwise left to the norm that follows.
        """
        if self.group.size == 1 and self.map.fuses_add:
            return Residual(self.map.add(x, hidden))
        return Residual(hidden, self.group.sum(self.map(x)), self.bias)


class VocabularyEmbedding:
    """Token embedding, split over the ranks by rows."""

    def __init__(self, weight: torch.Tensor, first: int, group: TensorParallelGroup) -> None:
        """`weight`: this rank's rows [entries, H]; the first row is that of token id `first`."""
        self.weight = weight
        self.first = first
        self.group = group

    def __call__(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return [S, H] for token ids [S], the same on every rank."""
        if self.group.size == 1:
            return functional.embedding(tokens, self.weight)
        local = tokens - self.first
        elsewhere = (local < 0) | (local >= len(self.weight))
        embedded = functional.embedding(local.masked_fill(elsewhere, 0), self.weight)
        return self.group.sum(embedded.masked_fill(elsewhere.unsqueeze(1), 0))


class Head:
    """Map to logits, split over the ranks by vocabulary and gathered to rank 0."""

    def __init__(
        self, linear_map: LinearMap, vocabulary: int, group: TensorParallelGroup, likeliest: Likeliest | None
    ) -> None:
        """`likeliest`: finds the largest logits without computing all; None if a rank has only some of the columns."""
        self.map = linear_map
        self.likeliest = likeliest
        self.vocabulary = vocabulary
        self.group = group

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return [rows, vocabulary] on rank 0, this rank's columns on other ranks."""
        return self.group.gather_columns(self.map(x), self.vocabulary)


class Rotary:
    """Cosines and sines of the rotary embedding for every position, computed in float32."""

    def __init__(self, rope: Rope, head_dim: int, max_model_len: int, device: torch.device) -> None:
        frequencies, factor = inverse_frequencies(rope, head_dim, max_model_len, device)
        angles = torch.outer(torch.arange(max_model_len, device=device).float(), frequencies)
        angles = torch.cat((angles, angles), dim=-1)
        self._cosine, self._sine = angles.cos() * factor, angles.sin() * factor

    def at(self, positions: torch.Tensor) -> Rotation:
        """Return the rotation of tokens at positions [S]."""
        return Rotation(self._cosine[positions], self._sine[positions])


class PagedAttention:
    """Stores keys and values in one layer's pools and attends to them.

    The only block that computes per request. Call `allocate` first.
    """

    def __init__(self, num_kv_heads: int, attention: Attention, kernels: Kernels) -> None:
        self.num_kv_heads = num_kv_heads
        self.pools: AnyPools = Pools(torch.empty(0), torch.empty(0))
        self._attention = attention
        self._kernels = kernels

    @property
    def is_reference(self) -> bool:
        """True if the attention is plain torch."""
        return isinstance(self._attention, ReferenceAttention)

    @property
    def recordable(self) -> bool:
        """See `orca_kernels.interface.Attention`."""
        return self._attention.recordable

    def new_pools(self, num_blocks: int, dtype: torch.dtype, device: torch.device) -> AnyPools:
        """Return zeroed pools in the layout of the attention, for activations of `dtype`."""
        return self._attention.new_pools(num_blocks, self.num_kv_heads, dtype, device)

    def allocate(self, pools: AnyPools) -> None:
        """Set the layer's pools."""
        self.pools = pools

    def store(self, key: torch.Tensor, value: torch.Tensor, batch: RaggedBatch) -> None:
        """Store the keys and values [S, G, D] of this iteration's tokens."""
        self._attention.store(key, value, self.pools, batch.slots)

    def rotate_and_store(
        self, queries_and_keys: Sequence[torch.Tensor], value: torch.Tensor, rotation: Rotation, batch: RaggedBatch
    ) -> torch.Tensor:
        """Store rotated keys and values, return rotated queries: `Kernels.rotate_and_store` in this layer's pools."""
        return self._kernels.rotate_and_store(
            queries_and_keys, value, rotation, self._attention, self.pools, batch.slots
        )

    def __call__(self, query: torch.Tensor, batch: RaggedBatch) -> torch.Tensor:
        """Return [S, N x D] for query [S, N, D]; the keys and values of this iteration's tokens are stored."""
        return self._attention(query, self.pools, batch).flatten(1)
