"""Attention on AMX tiles: emulated (support/emulated_tiles.h) where this processor has none."""

from __future__ import annotations

import pytest
import torch
from orca_contract.kv_blocks import BLOCK_SIZE
from orca_kernels.cpu.kernels import CpuKernels
from orca_kernels.cpu.targets import AVX512, processor_flags
from orca_kernels.interface import AttentionForm, Int8Pools, Pools, RaggedBatch
from support.cpu_targets import load, tile_target
from support.ragged import ragged

FLAGS = processor_flags()
pytestmark = pytest.mark.skipif(not AVX512 <= FLAGS, reason="tiles need AVX-512")
CPU = torch.device("cpu")
PARTS = [(0, 1), (0, 70), (15, 1), (63, 5), (64, 1), (100, 33), (127, 17), (200, 1)]
"""Context and new tokens of each request: whole and incomplete blocks and tiles of slots, chunks and increments."""
HEADS = [(1, 1), (4, 4), (6, 2), (8, 1)]
"""Query heads, and key/value heads."""


def kernels(tiles: bool) -> CpuKernels:
    library = load(tile_target(FLAGS))
    library.tiles = tiles
    return CpuKernels(library, torch.bfloat16)


def batch_of(heads: tuple[int, int], head_dim: int) -> tuple[torch.Tensor, Pools, RaggedBatch]:
    """Return queries, and pools that hold NaN where no token of the batch or its contexts is."""
    generator = torch.Generator().manual_seed(head_dim)
    contexts, counts = [context for context, _ in PARTS], [count for _, count in PARTS]
    batch = ragged(contexts, counts, 80, generator)
    pools = Pools(*(pool.fill_(float("nan")) for pool in Pools.zeros(80, heads[1], head_dim, torch.bfloat16, CPU)))
    store = kernels(tiles=False).attention(AttentionForm(head_dim, 1.0), torch.bfloat16).store
    for index, (context, count) in enumerate(PARTS):
        places = torch.arange(context + count)
        slots = batch.block_table[index][places // BLOCK_SIZE] * BLOCK_SIZE + places % BLOCK_SIZE
        store(*torch.randn(2, len(places), heads[1], head_dim, generator=generator).bfloat16(), pools, slots)
    query = torch.randn(sum(counts), heads[0], head_dim, generator=generator).bfloat16()
    return query, pools, batch


@pytest.mark.parametrize("window", [None, 1, 7, 64, 100])
@pytest.mark.parametrize("head_dim", [16, 64, 80])
@pytest.mark.parametrize("heads", HEADS)
def test_the_result_is_that_of_the_other_products(heads, head_dim, window):
    """Which test_kernels.py compares with float64."""
    query, pools, batch = batch_of(heads, head_dim)
    form = AttentionForm(head_dim, 0.3, window)
    found, expected = (kernels(tiles).attention(form, torch.bfloat16)(query, pools, batch) for tiles in (True, False))
    torch.testing.assert_close(found, expected, atol=2e-2, rtol=2e-2)


def test_tiles_are_used():
    """Which their order of sums shows."""
    query, pools, batch = batch_of((8, 1), 128)
    form = AttentionForm(128, 0.3)
    results = [kernels(tiles).attention(form, torch.bfloat16)(query, pools, batch) for tiles in (True, False)]
    assert not torch.equal(*results)


def test_a_cache_of_integers_is_multiplied_without_tiles():
    form = AttentionForm(64, 0.3, kv_cache_dtype="int8")
    batch = ragged([0, 0], [40, 5], 8, torch.Generator().manual_seed(0))
    key, value, query = (torch.randn(45, heads, 64).bfloat16() for heads in (2, 2, 6))
    results = []
    for tiles in (True, False):
        attend = kernels(tiles).attention(form, torch.bfloat16)
        pools = Int8Pools.zeros(8, 2, 64, CPU)
        attend.store(key, value, pools, batch.slots)
        results.append(attend(query, pools, batch))
    assert torch.equal(*results)


@pytest.mark.parametrize("window", [None, 7])
@pytest.mark.parametrize("head_dim", [32, 80])
@pytest.mark.parametrize("heads", HEADS)
def test_a_token_is_the_same_in_a_prompt_and_in_an_increment(heads, head_dim, window):
    """Bit for bit: every token of the batch alone."""
    query, pools, batch = batch_of(heads, head_dim)
    attend = kernels(tiles=True).attention(AttentionForm(head_dim, 0.3, window), torch.bfloat16)
    whole = attend(query, pools, batch)
    place = 0
    for index, (context, count) in enumerate(PARTS):
        for position in range(context, context + count):
            token = slice(place, place + 1)
            alone = RaggedBatch(
                torch.tensor([0, 1]), torch.tensor([position]), batch.positions[token], batch.slots[token],
                batch.block_table[index : index + 1],
            )  # fmt: skip
            assert torch.equal(attend(query[token], pools, alone), whole[token])
            place += 1
