"""Attention over pages (`PagePools`) beside the reference, and batches of a GPU without data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from hypothesis import strategies as st
from orca_contract.kv_blocks import BLOCK_SIZE
from orca_kernels.attention_self_test import ERROR
from orca_kernels.cuda.attention_library import AttentionChoice, AttentionSource, CheckedLibrary
from orca_kernels.interface import Attention, AttentionForm, PagePools, Pools, RaggedBatch
from orca_kernels.reference import ReferenceAttention, ReferenceKernels

from support.ragged import ragged

CPU, GPU = torch.device("cpu"), torch.device("meta")
PARTS = st.lists(
    st.one_of(
        st.tuples(st.integers(0, 120), st.just(1)),
        st.tuples(st.integers(0, 60), st.integers(1, 50)),
    ),
    min_size=1,
    max_size=5,
)
"""Context and new tokens of each request: increments and chunks."""
HEADS = st.sampled_from([(1, 1), (4, 4), (6, 2), (8, 1)])
"""Query heads and key/value heads."""


@torch.inference_mode()
def compare(
    attention: Attention,
    parts: Sequence[tuple[int, int]],
    heads: tuple[int, int],
    form: AttentionForm,
    dtype: torch.dtype,
    seed: int,
) -> None:
    """Raise AssertionError if `attention` differs from the reference; `parts` and `heads`: see PARTS and HEADS.

    Contexts are stored first, then the tokens of the iteration, in scattered blocks.
    """
    generator = torch.Generator().manual_seed(seed)
    num_blocks = sum(-(-sum(part) // BLOCK_SIZE) for part in parts) + 3
    batch = ragged([context for context, _ in parts], [count for _, count in parts], num_blocks, generator)
    old = torch.cat(
        [table[(places := torch.arange(context)) // BLOCK_SIZE] * BLOCK_SIZE + places % BLOCK_SIZE
         for (context, _), table in zip(parts, batch.block_table, strict=True)]
    )  # fmt: skip
    # Queries, keys and values are slices of one wider row, as a fused projection leaves them.
    rows = torch.randn(len(old) + len(batch.slots), heads[0] + 2 * heads[1], form.head_dim, generator=generator)
    query, key, value = rows.to(dtype).split([heads[0], heads[1], heads[1]], dim=1)
    results = []
    for attend in (attention, ReferenceAttention(form)):
        pools = attend.new_pools(num_blocks, heads[1], dtype, CPU)
        for pool in pools:
            pool.fill_(100.0)  # numbers that no output may show
        attend.store(key[: len(old)], value[: len(old)], pools, old)
        attend.store(key[len(old) :], value[len(old) :], pools, batch.slots)
        results.append(attend(query[len(old) :], pools, batch))
    torch.testing.assert_close(*results, atol=ERROR[dtype], rtol=ERROR[dtype])


def check_layout(attention: Attention) -> None:
    """Raise AssertionError if pools are no pages; `attention` has a head dimension of 64."""
    pools = attention.new_pools(5, 2, torch.bfloat16, CPU)
    assert isinstance(pools, PagePools)
    assert [pool.shape for pool in pools] == [(5, BLOCK_SIZE, 2, 64)] * 2
    others = Pools.zeros(5, 2, 64, torch.bfloat16, CPU)
    assert sum(pool.nbytes for pool in pools) == sum(pool.nbytes for pool in others), "a block has as many bytes"


def on_gpu(batch: RaggedBatch) -> RaggedBatch:
    """Return the batch of an iteration on a GPU: the host has starts and contexts."""
    there = {name: getattr(batch, name).to(GPU) for name in ("positions", "slots", "block_table")}
    return replace(batch, **there)


def attended(query, keys, values, scale, left, right=0, cap=0.0) -> torch.Tensor:
    """Return attended [L, N, D] for query [L, N, D], keys and values [T, G, D]; the last query is at the last key.

    `left`, `right`: positions before and after its own that a query attends to, all if negative. `cap`: of scores, 0
    for none.
    """
    repeats = query.shape[1] // keys.shape[1]
    scores = torch.einsum("qhd,khd->hqk", query, keys.repeat_interleave(repeats, 1)) * scale
    if cap > 0:
        scores = cap * torch.tanh(scores / cap)
    distance = torch.arange(len(query)).unsqueeze(1) + len(keys) - len(query) - torch.arange(len(keys))
    hidden = torch.zeros_like(distance, dtype=torch.bool)
    if left >= 0:
        hidden |= distance > left
    if right >= 0:
        hidden |= distance < -right
    weights = scores.masked_fill(hidden, float("-inf")).softmax(-1)
    return torch.einsum("hqk,khd->qhd", weights, values.repeat_interleave(repeats, 1))


class WithLibrary(ReferenceKernels):
    """Plain torch, but for attention, which a library computes. `config`: of the model."""

    def __init__(self, source: AttentionSource, config) -> None:
        choice = AttentionChoice(source.name, config.num_heads, config.num_kv_heads)
        self._library = CheckedLibrary(source, choice, CPU)

    def attention(self, form: AttentionForm, dtype: torch.dtype) -> Attention:
        return self._library.attention(form, dtype)
