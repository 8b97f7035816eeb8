"""Self-test of an attention: a small batch of every kind of request, compared with the reference in float32.

It runs on the model's device with the model's heads, before the first weights are used. So an attention that ORCA does
not compile itself is used only where it computes the same as the reference.
"""

from __future__ import annotations

import torch
from orca_contract.kv_blocks import BLOCK_SIZE

from orca_kernels.interface import Attention, AttentionForm, RaggedBatch
from orca_kernels.reference import ReferenceAttention

ERROR = {torch.float32: 2e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}
"""Allowed difference, absolute and relative, by element type: that of the tests of the kernels."""
PARTS = ((37, 21), (90, 1), (0, 33), (0, 1))
"""Context and new tokens of the requests: a chunk after a context, an increment, a prompt, and one of one token."""
BEYOND_WINDOW = 20
"""Slots of one more increment that lie before a sliding window."""
LONGEST_WINDOW = 8192
"""A longer window is not left by a context of the self-test, to bound its memory."""


class SelfTestError(Exception):
    """An attention computed other results than the reference; the message has the difference, in one line."""


@torch.inference_mode()
def self_test_attention(
    attention: Attention, form: AttentionForm, heads: tuple[int, int], dtype: torch.dtype, device: torch.device
) -> None:
    """Raise SelfTestError if `attention` differs from the reference; its own errors pass through.

    `heads`: query heads and key/value heads. With contexts on the host, as in an iteration, and if the attention is
    recordable also on the device, as in a decode graph.
    """
    parts = list(PARTS)
    if form.window is not None and form.window <= LONGEST_WINDOW:
        parts.append((form.window + BEYOND_WINDOW, 1))
    generator = torch.Generator().manual_seed(0)
    num_blocks = sum(-(-sum(part) // BLOCK_SIZE) for part in parts) + 1
    batch, stored = _batch(parts, torch.randperm(num_blocks, generator=generator))
    query, key, value = (
        torch.randn((count, num_heads, form.head_dim), generator=generator).to(dtype)
        for count, num_heads in ((len(batch.slots), heads[0]), (len(stored), heads[1]), (len(stored), heads[1]))
    )

    def run(tried: Attention, kind: torch.dtype, contexts_on: torch.device) -> torch.Tensor:
        pools = tried.new_pools(num_blocks, heads[1], kind, device)
        tried.store(key.to(device, kind), value.to(device, kind), pools, stored.to(device))
        there = RaggedBatch(
            batch.query_start,
            batch.context_length.to(contexts_on),
            *(tensor.to(device) for tensor in (batch.positions, batch.slots, batch.block_table)),
        )
        return tried(query.to(device, kind), pools, there).float()

    host = torch.device("cpu")
    # In float32, which a library of 16-bit attention has no part in, also where torch's own attention is that library.
    expected = run(ReferenceAttention(form), torch.float32, host)
    for contexts_on in (host, device) if attention.recordable else (host,):
        difference = (run(attention, dtype, contexts_on) - expected).abs()
        if not bool((difference <= ERROR[dtype] * (1 + expected.abs())).all()):  # not for NaN either
            raise SelfTestError(f"results differ from those of the reference by {difference.max().item():.1e}")


def _batch(parts: list[tuple[int, int]], order: torch.Tensor) -> tuple[RaggedBatch, torch.Tensor]:
    """Return a batch on the host whose requests have blocks in the given order, and all slots of the requests.

    The last block belongs to no request: it fills the table.
    """
    lengths = torch.tensor(parts).sum(1)
    table = torch.full((len(parts), -(-int(lengths.max()) // BLOCK_SIZE)), int(order[-1]), dtype=torch.int32)
    first, starts, slots, new, positions = 0, [0], [], [], []
    for row, (context, count) in enumerate(parts):
        blocks = order[first : first - (-(context + count) // BLOCK_SIZE)]
        first += len(blocks)
        table[row, : len(blocks)] = blocks
        places = torch.arange(context + count)
        slots.append(blocks[places // BLOCK_SIZE] * BLOCK_SIZE + places % BLOCK_SIZE)
        new.append(slots[-1][context:])
        positions.append(places[context:])
        starts.append(starts[-1] + count)
    contexts = torch.tensor([context for context, _ in parts])
    return RaggedBatch(torch.tensor(starts), contexts, torch.cat(positions), torch.cat(new), table), torch.cat(slots)
