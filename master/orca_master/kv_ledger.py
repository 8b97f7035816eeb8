"""`KvLedger`: which request may hold how many K/V slots of one pipeline, and which blocks and row those are.

A slot holds one token's keys and values. Memory is handed out in blocks of 16 slots, and every
reservation is rounded up to blocks, so the sum that Algorithm 1 compares in line 25 is the sum of the
rounded reservations (docs/contracts.md, section 2). A block id means the same block on every partition
and rank. Reuse right after `release` is safe because stages execute iterations in sequence order.

The paper's policy, `reserve`, is the ledger itself: everything a request may ever need is granted at
admission, so an admitted request always finishes.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

from orca_master.request import Request

BLOCK_SIZE = 16
"""Slots per block."""


def blocks_for(num_slots: int) -> int:
    """Blocks that hold `num_slots` slots."""
    return -(-num_slots // BLOCK_SIZE)


@dataclass(frozen=True, slots=True)
class Holding:
    """What an admitted request holds: its row on the workers, and its blocks in order of position."""

    row: int
    blocks: tuple[int, ...]


class KvLedger:
    """Blocks and rows of one pipeline, policy `reserve`. Holders are known by `Request.request_id`."""

    def __init__(self, num_blocks: int) -> None:
        if num_blocks < 1:
            raise ValueError(f"a ledger needs at least one block, got {num_blocks}")
        self.num_blocks = num_blocks
        self._free_blocks = list(range(num_blocks - 1, -1, -1))
        self._free_rows: list[int] = []
        self._num_rows = 0
        self._holdings: dict[str, Holding] = {}

    @property
    def num_free_blocks(self) -> int:
        """Blocks that no request holds."""
        return len(self._free_blocks)

    @property
    def num_reserved_slots(self) -> int:
        """Algorithm 1's `n_rsrv`, rounded to blocks."""
        return (self.num_blocks - self.num_free_blocks) * BLOCK_SIZE

    @property
    def num_holders(self) -> int:
        """Requests that hold slots."""
        return len(self._holdings)

    def blocks_to_admit(self, request: Request) -> int:
        """Blocks that must be free to admit `request`: its `max_tokens`, rounded up (line 24)."""
        return blocks_for(request.max_tokens)

    def admit(self, request: Request) -> Holding:
        """Reserves for `request` and returns what it now holds.

        Raises ValueError if it holds slots already or does not fit: the scheduler asks first.
        """
        needed = self.blocks_to_admit(request)
        if request.request_id in self._holdings or needed > self.num_free_blocks:
            raise ValueError(f"request {request.request_id} cannot be admitted: {needed} blocks needed")
        blocks = tuple(self._free_blocks[: -needed - 1 : -1])
        del self._free_blocks[-needed:]
        holding = Holding(self._take_row(), blocks)
        self._holdings[request.request_id] = holding
        return holding

    def holding(self, request: Request) -> Holding:
        """Returns what `request` holds; raises KeyError if it holds nothing."""
        return self._holdings[request.request_id]

    def release(self, request: Request) -> None:
        """Takes back what `request` holds; raises KeyError if it holds nothing (released exactly once)."""
        holding = self._holdings.pop(request.request_id)
        self._free_blocks.extend(reversed(holding.blocks))
        heapq.heappush(self._free_rows, holding.row)

    def _take_row(self) -> int:
        if self._free_rows:
            return heapq.heappop(self._free_rows)
        self._num_rows += 1
        return self._num_rows - 1
