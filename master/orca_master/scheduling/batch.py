"""Batches: the proposals of `Scheduler.select` and the dispatched batches of `Scheduler.dispatch`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from orca_contract.kv_blocks import BLOCK_SIZE

from orca_master.scheduling.prefix_cache import CacheUse
from orca_master.scheduling.request import Request


class Selection(NamedTuple):
    """One request of a proposal, with the number of its tokens to compute. A tuple, because one is created per token.

    `num_shared_blocks`: of a request to admit, the first blocks, which other requests have computed or compute.
    `draft`: tokens to compute in addition, which may follow the last known one (speculation.py). `num_drafts`: tokens
    that the draft model is to draft behind them.
    """

    request: Request
    num_tokens: int
    num_shared_blocks: int = 0
    draft: tuple[int, ...] = ()
    num_drafts: int = 0

    @property
    def samples(self) -> bool:
        """True if a token is sampled: no known token of the request comes behind these. Valid until the dispatch."""
        start = self.request.num_scheduled + self.num_shared_blocks * BLOCK_SIZE
        return self.request.pooling is None and start + self.num_tokens >= self.request.num_tokens

    @property
    def num_inputs(self) -> int:
        """Number of tokens to compute, drafted ones included."""
        return self.num_tokens + len(self.draft)

    @property
    def num_slots(self) -> int:
        """Number of slots that these tokens and those of the draft model need."""
        return self.num_inputs + self.num_drafts


@dataclass(frozen=True, slots=True)
class Proposal:
    """A proposed batch, empty if nothing can run, and the requests to preempt for it."""

    selections: tuple[Selection, ...] = ()
    preempted: tuple[Request, ...] = ()
    is_full: bool = False
    """True if no further token of a prompt fits into the iteration."""

    def __bool__(self) -> bool:
        return bool(self.selections)


class ScheduledRequest(NamedTuple):
    """One request of a dispatched batch: an entry of an Iteration (protos/engine.proto), and one per drafted token.

    `is_masked`: a mask limits the token that is sampled; decided at the dispatch, for masks and workers alike.
    """

    request: Request
    incarnation: int
    row: int
    num_tokens: int
    context_length: int
    new_blocks: tuple[int, ...]
    admitted: bool
    samples: bool
    draft: tuple[int, ...] = ()
    num_drafts: int = 0
    is_masked: bool = False

    @property
    def num_inputs(self) -> int:
        """Number of input tokens, drafted ones included."""
        return self.num_tokens + len(self.draft)

    @property
    def num_sampled(self) -> int:
        """Number of tokens that the iteration samples for the request, also those that may turn out to be invalid."""
        return self.samples + len(self.draft)

    @property
    def prompt_positions(self) -> range:
        """Positions of the prompt of which the iteration returns results (`Request.num_positions`), until commit."""
        request = self.request
        if not request.awaits_positions:
            return range(0)
        return range(
            max(self.context_length, request.num_positions_read),
            min(self.context_length + self.num_tokens, request.num_positions),
        )

    @property
    def is_stale(self) -> bool:
        """True if the result will be ignored: the request was rewound or has ended."""
        return self.incarnation != self.request.incarnation

    @property
    def is_known(self) -> bool:
        """True if the master knows all input tokens, or does not need them any more."""
        return self.is_stale or self.request.num_tokens >= self.context_length + self.num_tokens


@dataclass(frozen=True, slots=True)
class Batch:
    """The requests of one iteration of one pipeline, and what its admissions found in the prefix cache."""

    pipeline: str
    requests: tuple[ScheduledRequest, ...]
    cache_use: CacheUse = field(default_factory=CacheUse)
    is_full: bool = False
    """See Proposal."""

    @property
    def entries(self) -> list[ScheduledRequest]:
        """The request of each entry of the Iteration: of one with drafted tokens, an entry for each of these, too."""
        return [scheduled for scheduled in self.requests for _ in range(1 + len(scheduled.draft))]

    @property
    def masked(self) -> tuple[ScheduledRequest, ...]:
        """The requests that sample a token that a mask limits."""
        return tuple(entry for entry in self.requests if entry.is_masked)
