"""`KvPools`: the K/V pools of all attention layers of a stage. Their layout is that of the attentions."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from orca_worker.layers import PagedAttention


class KvPools:
    """Pools of keys and values of equal size for each of `attentions`; no pools before the first `allocate`.

    `dtype`: of the activations.
    """

    def __init__(self, attentions: Sequence[PagedAttention], dtype: torch.dtype, device: torch.device) -> None:
        self.num_blocks = 0
        self._attentions = attentions
        self._dtype = dtype
        self._device = device

    @property
    def block_bytes(self) -> int:
        """Bytes of a block's keys and values in all layers, with their scales."""
        host = torch.device("cpu")
        return sum(
            tensor.nbytes for attention in self._attentions for tensor in attention.new_pools(1, self._dtype, host)
        )

    def allocate(self, num_blocks: int) -> None:
        """Allocate zeroed pools of `num_blocks` blocks after releasing the old ones; keep pools of the same size."""
        if num_blocks == self.num_blocks:
            return
        self._set(0)
        self._set(num_blocks)

    def grow(self, num_blocks: int) -> None:
        """Allocate pools of `num_blocks` blocks if the present ones have fewer."""
        if self.num_blocks < num_blocks:
            self.allocate(num_blocks)

    def _set(self, num_blocks: int) -> None:
        for attention in self._attentions:
            attention.allocate(attention.new_pools(num_blocks, self._dtype, self._device))
        self.num_blocks = num_blocks
