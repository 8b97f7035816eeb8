"""`KvLedger`: the K/V blocks and the row that each request of one pipeline holds.

A slot holds one token's keys and values. Memory is allocated in blocks of 16 slots, and every
reservation is rounded up to blocks, so the sum that Algorithm 1 compares in line 25 is the sum of the
rounded reservations (docs/contracts.md, section 2), in which a shared block counts once. A block id means the same
block on every partition and rank. Blocks can be reused right after `release` because stages execute iterations in
sequence order.

The two policies differ in one method. `KvLedger` is the paper's policy `reserve`: admission grants all blocks
that a request may ever need, so an admitted request always finishes. `PagedLedger` grants the blocks of the known
tokens and lets requests grow; the scheduler frees blocks by preempting the youngest requests. A pipeline can change its
policy while it serves (`adopt`): requests that were admitted under `paged` still grow and can be preempted under
`reserve`. No deadlock is possible: the first request of the order can preempt all others, and the pipeline has blocks
for all of its tokens (`can_finish`).
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Self

from orca_contract.kv_blocks import BLOCK_SIZE

from orca_master.scheduling.prefix_cache import CacheUse, PrefixCache, block_keys
from orca_master.scheduling.request import Request


def blocks_for(num_slots: int) -> int:
    """Return the number of blocks that hold `num_slots` slots."""
    return -(-num_slots // BLOCK_SIZE)


def shareable_blocks(request: Request) -> int:
    """Return the number of a request's first blocks that it need not compute itself.

    At least one token is left to compute, because the next token is sampled after the last known one. A token is
    computed if the result of its position has not returned yet (`Request.num_positions`).
    """
    first_needed = request.num_tokens - 1
    return (request.num_positions_read if request.awaits_positions else first_needed) // BLOCK_SIZE


@dataclass(slots=True)
class Holding:
    """Row of an admitted request on the workers, and its blocks in order of position."""

    row: int
    blocks: list[int]
    num_known: int = 0
    """First blocks whose content the prefix cache knows."""


class KvLedger:
    """Blocks and rows of one pipeline, policy `reserve`. Holdings are keyed by `Request.request_id`."""

    def __init__(self, num_blocks: int, prefix_cache: PrefixCache | None = None) -> None:
        """`prefix_cache`: a new one, None if requests share no blocks."""
        if num_blocks < 1:
            raise ValueError(f"a ledger needs at least one block, got {num_blocks}")
        self.num_blocks = num_blocks
        self.prefix_cache = prefix_cache
        self._free_blocks = list(range(num_blocks - 1, -1, -1))
        """Without a content that could be shared."""
        self._num_holders: Counter[int] = Counter()
        """Requests that hold each block."""
        self._free_rows: list[int] = []
        self._num_rows = 0
        self._holdings: dict[str, Holding] = {}

    @classmethod
    def adopt(cls, other: KvLedger) -> Self:
        """Return a ledger of this policy in the state of `other`, which must not be used any more."""
        ledger = cls(other.num_blocks, other.prefix_cache)
        ledger._free_blocks, ledger._holdings = other._free_blocks, other._holdings
        ledger._num_holders = other._num_holders
        ledger._free_rows, ledger._num_rows = other._free_rows, other._num_rows
        return ledger

    @property
    def num_free_blocks(self) -> int:
        """Number of blocks that no request holds, also of those that have a content."""
        return len(self._free_blocks) + (self.prefix_cache.num_unused if self.prefix_cache is not None else 0)

    @property
    def num_reserved_slots(self) -> int:
        """Algorithm 1's `n_rsrv`, rounded to blocks."""
        return (self.num_blocks - self.num_free_blocks) * BLOCK_SIZE

    @property
    def num_holders(self) -> int:
        """Number of requests that hold slots."""
        return len(self._holdings)

    def collect_cache_use(self) -> CacheUse:
        """Return the counts of the prefix cache since the last call."""
        return CacheUse() if self.prefix_cache is None else self.prefix_cache.collect_use()

    def blocks_of(self, request: Request) -> int:
        """Return the number of blocks that `request` holds after its admission: its `max_tokens`, rounded up."""
        return blocks_for(request.max_tokens)

    def blocks_to_admit(self, request: Request) -> int:
        """Return the number of free blocks that admitting `request` takes (line 24), without those that others hold."""
        return self.blocks_of(request) - sum(block in self._num_holders for block in self.cached_blocks(request))

    def cached_blocks(self, request: Request) -> list[int]:
        """Return the first blocks of a waiting request that are in the prefix cache, at most `shareable_blocks`."""
        if self.prefix_cache is None:
            return []
        return self.prefix_cache.find_prefix(request, shareable_blocks(request))

    def can_finish(self, request: Request) -> bool:
        """Return True if the pipeline has blocks for all tokens of `request`; another pipeline may be larger."""
        return self.num_blocks >= blocks_for(request.max_tokens)

    def blocks_to_grow(self, request: Request, num_slots: int) -> int:
        """Return how many blocks an admitted request lacks for `num_slots` slots.

        Always 0 if the request was admitted under `reserve`.
        """
        return max(0, blocks_for(num_slots) - len(self.holding(request).blocks))

    def hold_shared(self, request: Request, num_blocks: int) -> list[int]:
        """Hold those of the first `num_blocks` blocks of a request that are in the prefix cache, and return them.

        For `admit`, before other admissions take blocks and evict them.
        """
        blocks = self.cached_blocks(request)[:num_blocks] if num_blocks else []
        self._hold(blocks)
        return blocks

    def admit(self, request: Request, num_shared_blocks: int = 0, held: Sequence[int] = ()) -> Holding:
        """Reserve a row and blocks for `request` and return them.

        The first `num_shared_blocks` are those of `held`, and those whose content earlier admissions have noted since.
        Raises ValueError if the request holds slots already or does not fit: the scheduler checks before.
        """
        if request.request_id in self._holdings:
            raise ValueError(f"request {request.request_id} holds slots already")
        blocks = list(held)
        if len(blocks) < num_shared_blocks:
            noted = self.cached_blocks(request)[len(blocks) : num_shared_blocks]
            self._hold(noted)
            blocks += noted
        if len(blocks) != num_shared_blocks:
            raise ValueError(f"request {request.request_id} shares {len(blocks)} blocks, not {num_shared_blocks}")
        blocks += self._take_blocks(self.blocks_of(request) - num_shared_blocks)
        holding = self._holdings[request.request_id] = Holding(self._take_row(), blocks, num_shared_blocks)
        if self.prefix_cache is not None and not request.incarnation:  # a replay is no query
            self.prefix_cache.use.num_queried += request.num_tokens
            self.prefix_cache.use.num_hits += num_shared_blocks * BLOCK_SIZE
        return holding

    def grow(self, request: Request, num_slots: int) -> Sequence[int]:
        """Allocate the blocks that `request` lacks for `num_slots` slots, and return them.

        Raises ValueError if too few blocks are free: the scheduler checks before.
        """
        if not (num_lacking := self.blocks_to_grow(request, num_slots)):
            return ()
        blocks = self._take_blocks(num_lacking)
        self.holding(request).blocks.extend(blocks)
        return blocks

    def note_contents(self, request: Request, num_slots: int) -> None:
        """Note that iterations up to the dispatched one compute the first `num_slots` slots, of known tokens."""
        holding = self.holding(request)
        if self.prefix_cache is None or num_slots // BLOCK_SIZE <= holding.num_known:
            return
        keys = block_keys(request, num_slots // BLOCK_SIZE)
        for index in range(holding.num_known, num_slots // BLOCK_SIZE):
            freed = self.prefix_cache.put(keys[index], holding.blocks[index])
            if freed is not None:
                self._free_blocks.append(freed)
        holding.num_known = num_slots // BLOCK_SIZE

    def next_key(self, request: Request) -> bytes | None:
        """Return the key of the first block of an admitted request that the iterations so far do not fill.

        None if the block is not full of known tokens, and without a prefix cache.
        """
        num_known = self.holding(request).num_known
        if self.prefix_cache is None or (num_known + 1) * BLOCK_SIZE > request.num_tokens:
            return None
        return block_keys(request, num_known + 1)[num_known]

    def holding(self, request: Request) -> Holding:
        """Return the holding of `request`; raise KeyError if `request` has none."""
        return self._holdings[request.request_id]

    def count_freed(self, request: Request, held: Counter[int]) -> set[int]:
        """Add the blocks of `request` to `held`, which counts those of other requests.

        Return those of them that no request holds which is not counted: releasing all counted requests frees them.
        """
        blocks = self.holding(request).blocks
        held.update(blocks)
        return {block for block in blocks if held[block] == self._num_holders[block]}

    def release(self, request: Request) -> None:
        """Free the row of `request` and the blocks that no other holds; raise KeyError if `request` has none.

        The last blocks of a prefix are evicted first: the others are of no use without the first.
        """
        holding = self._holdings.pop(request.request_id)
        for block in reversed(holding.blocks):
            self._num_holders[block] -= 1
            if not self._num_holders[block]:
                del self._num_holders[block]
                if self.prefix_cache is None or not self.prefix_cache.retire(block):
                    self._free_blocks.append(block)
        heapq.heappush(self._free_rows, holding.row)

    def _hold(self, blocks: Collection[int]) -> None:
        for block in blocks:
            if self.prefix_cache is not None:
                self.prefix_cache.hold(block)
            self._num_holders[block] += 1

    def _take_blocks(self, count: int) -> list[int]:
        if count > self.num_free_blocks:
            raise ValueError(f"{count} blocks are needed, {self.num_free_blocks} are free")
        blocks = [self._take_block() for _ in range(count)]
        self._hold(blocks)
        return blocks

    def _take_block(self) -> int:
        if self._free_blocks or self.prefix_cache is None:
            return self._free_blocks.pop()
        return self.prefix_cache.evict()

    def _take_row(self) -> int:
        if self._free_rows:
            return heapq.heappop(self._free_rows)
        self._num_rows += 1
        return self._num_rows - 1


class PagedLedger(KvLedger):
    """Policy `paged`: blocks on demand (Kwon et al., SOSP 2023)."""

    def blocks_of(self, request: Request) -> int:
        """Return the number of blocks for the known tokens and the next sampled token; an embedding samples none."""
        return blocks_for(min(request.num_tokens + 1, request.max_tokens))


def kv_usage(ledgers: Collection[KvLedger]) -> float:
    """Return the share of the blocks of all `ledgers` that requests hold, 0 without ledgers."""
    num_blocks = sum(ledger.num_blocks for ledger in ledgers)
    return 1 - sum(ledger.num_free_blocks for ledger in ledgers) / num_blocks if num_blocks else 0.0


def most_cached(ledgers: Collection[KvLedger], request: Request) -> int:
    """Return the largest number of tokens of a waiting request in any ledger's prefix cache, 0 without ledgers."""
    return max((len(ledger.cached_blocks(request)) for ledger in ledgers), default=0) * BLOCK_SIZE


LEDGERS: dict[str, type[KvLedger]] = {"reserve": KvLedger, "paged": PagedLedger}
"""Values of `--admission` → ledger."""
