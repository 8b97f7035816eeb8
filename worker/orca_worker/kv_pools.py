"""`KvPools`: the K/V pools of all attention layers of a stage."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from orca_contract.kv_blocks import BLOCK_SIZE
from orca_kernels.interface import Pools

from orca_worker.layers import PagedAttention


class KvPools:
    """A pair of pools (keys, values) of equal size for each of `attentions`; no pools before the first `allocate`.

    `shape`: number of K/V heads on this rank, head dimension.
    """

    def __init__(
        self, attentions: Sequence[PagedAttention], shape: tuple[int, int], dtype: torch.dtype, device: torch.device
    ) -> None:
        self.num_blocks = 0
        self._attentions = attentions
        self._shape = shape
        self._dtype = dtype
        self._device = device

    @property
    def block_bytes(self) -> int:
        """Bytes of a block's keys and values in all layers."""
        kv_heads, head_dim = self._shape
        return len(self._attentions) * 2 * BLOCK_SIZE * kv_heads * head_dim * self._dtype.itemsize

    def allocate(self, num_blocks: int) -> None:
        """Allocate zeroed pools of `num_blocks` blocks after releasing the old ones; keep pools of the same size."""
        if num_blocks == self.num_blocks:
            return
        self._set(0)
        self._set(num_blocks)

    def _set(self, num_blocks: int) -> None:
        for attention in self._attentions:
            attention.allocate(Pools.zeros(num_blocks, *self._shape, self._dtype, self._device))
        self.num_blocks = num_blocks
