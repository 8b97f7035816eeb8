"""`KvPools`: the bytes of a block are those that are allocated, whatever the type of the cache."""

from __future__ import annotations

import pytest
import torch
from orca_kernels.cuda.torch_attention import PagedBatches, TorchAttention
from orca_kernels.interface import AttentionForm, Int8Pools, PagePools, Pools
from orca_kernels.reference import ReferenceAttention, ReferenceKernels
from orca_worker.kv_pools import KvPools
from orca_worker.layers import PagedAttention

CPU = torch.device("cpu")
LAYERS, KV_HEADS, HEAD_DIM = 3, 2, 64


def made(dtype: torch.dtype, kv_cache_dtype: str) -> tuple[KvPools, list[PagedAttention]]:
    form = AttentionForm(HEAD_DIM, 0.1, kv_cache_dtype=None if kv_cache_dtype == "auto" else kv_cache_dtype)
    attentions = [PagedAttention(KV_HEADS, ReferenceAttention(form), ReferenceKernels()) for _ in range(LAYERS)]
    return KvPools(attentions, dtype, CPU), attentions


@pytest.mark.parametrize(
    ("dtype", "kv_cache_dtype", "kind", "row_bytes"),
    [
        (torch.float32, "auto", Pools, 4 * HEAD_DIM),
        (torch.bfloat16, "auto", Pools, 2 * HEAD_DIM),
        (torch.float32, "int8", Int8Pools, HEAD_DIM + 4),
        (torch.bfloat16, "int8", Int8Pools, HEAD_DIM + 4),
    ],
)
def test_the_bytes_of_a_block_are_those_that_are_allocated(dtype, kv_cache_dtype, kind, row_bytes):
    pools, attentions = made(dtype, kv_cache_dtype)
    assert pools.block_bytes == LAYERS * 2 * 16 * KV_HEADS * row_bytes
    pools.allocate(7)
    assert all(isinstance(attention.pools, kind) for attention in attentions)
    allocated = sum(tensor.nbytes for attention in attentions for tensor in attention.pools)
    assert allocated == 7 * pools.block_bytes
    assert not any(tensor.any() for attention in attentions for tensor in attention.pools)


def test_the_layout_is_that_of_the_attention():
    """A block of pages for torch's library has the bytes of ORCA's own."""
    attention = TorchAttention(lambda *_: None, PagedBatches(), AttentionForm(HEAD_DIM, 0.1))
    attentions = [PagedAttention(KV_HEADS, attention, ReferenceKernels()) for _ in range(LAYERS)]
    pools = KvPools(attentions, torch.bfloat16, CPU)
    assert pools.block_bytes == made(torch.bfloat16, "auto")[0].block_bytes
    pools.allocate(7)
    assert all(isinstance(attention.pools, PagePools) for attention in attentions)
    assert sum(tensor.nbytes for attention in attentions for tensor in attention.pools) == 7 * pools.block_bytes


@pytest.mark.parametrize("kv_cache_dtype", ["auto", "int8"])
def test_pools_of_the_same_size_are_kept(kv_cache_dtype):
    pools, attentions = made(torch.float32, kv_cache_dtype)
    pools.allocate(4)
    before = [attention.pools for attention in attentions]
    pools.allocate(4)
    assert all(attention.pools is old for attention, old in zip(attentions, before, strict=True))
    pools.allocate(5)
    assert {len(attention.pools.keys) for attention in attentions} == {5}
    assert pools.num_blocks == 5
