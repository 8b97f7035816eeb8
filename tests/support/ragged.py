"""Ragged batches over scattered blocks, for tests of kernels."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from orca_contract.kv_blocks import BLOCK_SIZE
from orca_kernels.interface import RaggedBatch


def ragged(contexts: Sequence[int], counts: Sequence[int], num_blocks: int, generator: torch.Generator) -> RaggedBatch:
    """Return a batch whose requests have randomly ordered blocks."""
    order = torch.randperm(num_blocks, generator=generator).tolist()
    tables, slots, positions, starts = [], [], [], [0]
    for context, count in zip(contexts, counts, strict=True):
        table = [order.pop() for _ in range(-(-(context + count) // BLOCK_SIZE))]
        tables.append(table)
        for position in range(context, context + count):
            positions.append(position)
            slots.append(table[position // BLOCK_SIZE] * BLOCK_SIZE + position % BLOCK_SIZE)
        starts.append(starts[-1] + count)
    longest = max(map(len, tables))
    return RaggedBatch(
        torch.tensor(starts),
        torch.tensor(contexts),
        torch.tensor(positions),
        torch.tensor(slots),
        torch.tensor([table + [0] * (longest - len(table)) for table in tables], dtype=torch.int32),
    )
