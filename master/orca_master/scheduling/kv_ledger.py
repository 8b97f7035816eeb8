"""`KvLedger`: the K/V blocks and the row that each request of one pipeline holds.

A slot holds one token's keys and values. Memory is allocated in blocks of 16 slots, and every
reservation is rounded up to blocks, so the sum that Algorithm 1 compares in line 25 is the sum of the
rounded reservations (docs/contracts.md, section 2). A block id means the same block on every partition
and rank. Blocks can be reused right after `release` because stages execute iterations in sequence order.

The two policies differ in one method. `KvLedger` is the paper's policy `reserve`: admission grants all blocks
that a request may ever need, so an admitted request always finishes. `PagedLedger` grants the blocks of the known
tokens and lets requests grow; the scheduler frees blocks by preempting the youngest requests. A pipeline can change its
policy while it serves (`adopt`): requests that were admitted under `paged` still grow and can be preempted under
`reserve`. No deadlock is possible: the first request of the order can preempt all others, and the pipeline has blocks
for all of its tokens (`can_finish`).
"""

from __future__ import annotations

import heapq
from collections.abc import Collection
from dataclasses import dataclass
from typing import Self

from orca_contract.kv_blocks import BLOCK_SIZE

from orca_master.scheduling.request import Request


def blocks_for(num_slots: int) -> int:
    """Return the number of blocks that hold `num_slots` slots."""
    return -(-num_slots // BLOCK_SIZE)


@dataclass(slots=True)
class Holding:
    """Row of an admitted request on the workers, and its blocks in order of position."""

    row: int
    blocks: list[int]


class KvLedger:
    """Blocks and rows of one pipeline, policy `reserve`. Holdings are keyed by `Request.request_id`."""

    def __init__(self, num_blocks: int) -> None:
        if num_blocks < 1:
            raise ValueError(f"a ledger needs at least one block, got {num_blocks}")
        self.num_blocks = num_blocks
        self._free_blocks = list(range(num_blocks - 1, -1, -1))
        self._free_rows: list[int] = []
        self._num_rows = 0
        self._holdings: dict[str, Holding] = {}

    @classmethod
    def adopt(cls, other: KvLedger) -> Self:
        """Return a ledger of this policy in the state of `other`, which must not be used any more."""
        ledger = cls(other.num_blocks)
        ledger._free_blocks, ledger._holdings = other._free_blocks, other._holdings
        ledger._free_rows, ledger._num_rows = other._free_rows, other._num_rows
        return ledger

    @property
    def num_free_blocks(self) -> int:
        """Number of blocks that no request holds."""
        return len(self._free_blocks)

    @property
    def num_reserved_slots(self) -> int:
        """Algorithm 1's `n_rsrv`, rounded to blocks."""
        return (self.num_blocks - self.num_free_blocks) * BLOCK_SIZE

    @property
    def num_holders(self) -> int:
        """Number of requests that hold slots."""
        return len(self._holdings)

    def blocks_to_admit(self, request: Request) -> int:
        """Return the number of free blocks that admitting `request` takes: its `max_tokens`, rounded up (line 24)."""
        return blocks_for(request.max_tokens)

    def can_finish(self, request: Request) -> bool:
        """Return True if the pipeline has blocks for all tokens of `request`; another pipeline may be larger."""
        return self.num_blocks >= blocks_for(request.max_tokens)

    def blocks_to_grow(self, request: Request, num_slots: int) -> int:
        """Return how many blocks an admitted request lacks for `num_slots` slots.

        Always 0 if the request was admitted under `reserve`.
        """
        return max(0, blocks_for(num_slots) - len(self.holding(request).blocks))

    def admit(self, request: Request) -> Holding:
        """Reserve a row and blocks for `request` and return them.

        Raises ValueError if the request holds slots already or does not fit: the scheduler checks before.
        """
        if request.request_id in self._holdings:
            raise ValueError(f"request {request.request_id} holds slots already")
        blocks = self._take_blocks(self.blocks_to_admit(request))
        holding = self._holdings[request.request_id] = Holding(self._take_row(), blocks)
        return holding

    def grow(self, request: Request, num_slots: int) -> list[int]:
        """Allocate the blocks that `request` lacks for `num_slots` slots, and return them.

        Raises ValueError if too few blocks are free: the scheduler checks before.
        """
        blocks = self._take_blocks(self.blocks_to_grow(request, num_slots))
        self.holding(request).blocks.extend(blocks)
        return blocks

    def holding(self, request: Request) -> Holding:
        """Return the holding of `request`; raise KeyError if `request` has none."""
        return self._holdings[request.request_id]

    def release(self, request: Request) -> None:
        """Free the row and blocks of `request`; raise KeyError if `request` has none (released exactly once)."""
        holding = self._holdings.pop(request.request_id)
        self._free_blocks.extend(reversed(holding.blocks))
        heapq.heappush(self._free_rows, holding.row)

    def _take_blocks(self, count: int) -> list[int]:
        if count > self.num_free_blocks:
            raise ValueError(f"{count} blocks are needed, {self.num_free_blocks} are free")
        return [self._free_blocks.pop() for _ in range(count)]

    def _take_row(self) -> int:
        if self._free_rows:
            return heapq.heappop(self._free_rows)
        self._num_rows += 1
        return self._num_rows - 1


class PagedLedger(KvLedger):
    """Policy `paged`: blocks on demand (Kwon et al., SOSP 2023)."""

    def blocks_to_admit(self, request: Request) -> int:
        """Return the number of blocks for the known tokens and the next sampled token."""
        return blocks_for(request.num_tokens + 1)


def kv_usage(ledgers: Collection[KvLedger]) -> float:
    """Return the share of the blocks of all `ledgers` that requests hold, 0 without ledgers."""
    num_blocks = sum(ledger.num_blocks for ledger in ledgers)
    return 1 - sum(ledger.num_free_blocks for ledger in ledgers) / num_blocks if num_blocks else 0.0


LEDGERS: dict[str, type[KvLedger]] = {"reserve": KvLedger, "paged": PagedLedger}
"""Values of `--admission` → ledger."""
