"""`KvPools`: the K/V pools of all attention layers of a stage."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from orca_contract.kv_blocks import BLOCK_SIZE
from orca_contract.model_choices import KvCacheDtype
from orca_kernels.interface import AnyPools, Int8Pools, Pools

from orca_worker.layers import PagedAttention

SCALE_BYTES = torch.float32.itemsize


class KvPools:
    """Pools of keys and values of equal size for each of `attentions`; no pools before the first `allocate`.

    `shape`: number of K/V heads on this rank, head dimension. `dtype`: of the activations.
    """

    def __init__(
        self,
        attentions: Sequence[PagedAttention],
        shape: tuple[int, int],
        dtype: torch.dtype,
        device: torch.device,
        kv_cache_dtype: KvCacheDtype = "auto",
    ) -> None:
        self.num_blocks = 0
        self._attentions = attentions
        self._shape = shape
        self._dtype = dtype
        self._device = device
        self._kv_cache_dtype = kv_cache_dtype

    @property
    def block_bytes(self) -> int:
        """Bytes of a block's keys and values in all layers, with their scales."""
        kv_heads, head_dim = self._shape
        row = head_dim + SCALE_BYTES if self._kv_cache_dtype == "int8" else head_dim * self._dtype.itemsize
        return len(self._attentions) * 2 * BLOCK_SIZE * kv_heads * row

    def allocate(self, num_blocks: int) -> None:
        """Allocate zeroed pools of `num_blocks` blocks after releasing the old ones; keep pools of the same size."""
        if num_blocks == self.num_blocks:
            return
        self._set(0)
        self._set(num_blocks)

    def _set(self, num_blocks: int) -> None:
        for attention in self._attentions:
            attention.allocate(self._zeros(num_blocks))
        self.num_blocks = num_blocks

    def _zeros(self, num_blocks: int) -> AnyPools:
        if self._kv_cache_dtype == "int8":
            return Int8Pools.zeros(num_blocks, *self._shape, self._device)
        return Pools.zeros(num_blocks, *self._shape, self._dtype, self._device)
