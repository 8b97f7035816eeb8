"""`Kernels`: the operations that a Transformer layer is made of, one method each.

Implementations take and return torch tensors on one device and keep no state. Shapes: S = tokens of the
iteration (the paper's ΣL), R = requests, D = head dimension, N = query heads, G = key/value heads
(N is a multiple of G), B = blocks of the pool, 16 slots each.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

BLOCK_SIZE = 16
"""Slots per block of the K/V pools."""


@dataclass(frozen=True, slots=True)
class RaggedBatch:
    """Where the tokens of each request stand, in this iteration and in the K/V pools."""

    query_start: tuple[int, ...]
    """[R + 1] first token of each request among the S tokens, and S."""
    context_length: tuple[int, ...]
    """[R] slots filled before this iteration."""
    positions: torch.Tensor
    """[S] int64 position of each token in its sequence."""
    slots: torch.Tensor
    """[S] int64 slot of each token in the pools: block id x 16 + place in the block."""
    block_table: torch.Tensor
    """[R, blocks of the longest request] int64 block ids in order of position."""


class Kernels(Protocol):
    """One implementation of every operation."""

    def layer_norm(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, epsilon: float) -> torch.Tensor:
        """LayerNorm over the last dimension of x [S, H]."""

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
        """Root mean square norm over the last dimension of x [S, H], computed in float32."""

    def gelu_tanh(self, x: torch.Tensor) -> torch.Tensor:
        """GeLU, tanh approximation, of x [S, I]."""

    def silu_and_multiply(self, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        """silu(gate) x up, each [S, I]."""

    def rotate(self, x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
        """Rotary embedding (halves rotated, as in Llama) of x [S, heads, D] with cosine, sine [S, D]."""

    def store(
        self,
        key: torch.Tensor,
        value: torch.Tensor,
        key_pool: torch.Tensor,
        value_pool: torch.Tensor,
        slots: torch.Tensor,
    ) -> None:
        """Writes key, value [S, G, D] into the pools [B, 16, G, D] at `slots` [S]."""

    def attention(
        self,
        query: torch.Tensor,
        key_pool: torch.Tensor,
        value_pool: torch.Tensor,
        batch: RaggedBatch,
        scale: float,
        window: int | None,
    ) -> torch.Tensor:
        """Causal attention of query [S, N, D], each token over its own request's slots; returns [S, N, D].

        With a `window` a token sees that many positions at most, its own included.
        Keys and values of this iteration's tokens must be stored already.
        """
