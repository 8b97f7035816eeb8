"""`Scheduler`: Algorithm 1 of the paper. Pure: no I/O, no clock, no asyncio, no gRPC.

One iteration of one pipeline passes through three calls: `select` proposes a batch and changes
nothing, `dispatch` reserves slots and marks the batch RUNNING, `commit` takes the sampled tokens back.
`rewind` and `cancel` may come at any moment in between.

Four things go beyond the algorithm as printed, and each can be switched off:
- Balanced batches: with fewer live requests than `max_batch_size` x `n_workers` the printed algorithm
  puts everyone into one batch and leaves the other stages idle. A batch is capped at
  ceil(live / n_workers).
- Token budget: a long prompt is computed in chunks, so that it does not stall everyone's next token.
- Paged admission: slots on demand, and the youngest preempted when there are none (kv_ledger.py).
- Several pipelines feed from one pool (docs/contracts.md, section 2, FCFS).
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from orca_master.scheduling.batch import Batch, Proposal, ScheduledRequest, Selection
from orca_master.scheduling.kv_ledger import KvLedger
from orca_master.scheduling.policies import Order
from orca_master.scheduling.request import FinishReason, Request, RequestState
from orca_master.scheduling.request_pool import RequestPool


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """Knobs of the scheduler. `token_budget` is in input tokens per iteration, None for no limit."""

    max_batch_size: int
    n_workers: int
    token_budget: int | None = None
    balanced: bool = True


@dataclass(slots=True)
class _Pipeline:
    ledger: KvLedger
    in_flight: int = 0
    admitted: list[Request] = field(default_factory=list)
    """Requests that hold slots here, in the order of the policy."""


@dataclass(slots=True)
class _Room:
    """What a batch may still take: free K/V blocks, and tokens of the budget (None: unlimited)."""

    num_blocks: int
    num_tokens: int | None
    preempted: list[Request] = field(default_factory=list)

    def tokens_for(self, request: Request) -> int:
        """Return how many tokens of `request` the batch can compute."""
        left = request.num_uncomputed
        return left if self.num_tokens is None else min(left, self.num_tokens)

    def take(self, num_blocks: int, num_tokens: int) -> None:
        """Take blocks and tokens."""
        self.num_blocks -= num_blocks
        if self.num_tokens is not None:
            self.num_tokens -= num_tokens


class _Candidates:
    """Iterates over the selectable requests of a pipeline in the order of the policy (lines 19 to 21).

    The first waiting request that cannot be admitted ends admission: no request behind it is admitted (line 25, no
    starvation). In the printed algorithm no admitted request can come behind it. After a rewind, or with priorities,
    one can, and it goes on, because only its end frees the slots that the earlier request waits for.
    """

    def __init__(self, waiting: Iterable[Request], admitted: Sequence[Request], order: Order) -> None:
        self._waiting = iter(waiting)
        self._admitted = admitted
        self._order = order
        self._head = next(self._waiting, None)

    def end_admission(self) -> None:
        """Leaves out all waiting requests from now on."""
        self._waiting, self._head = iter(()), None

    def __iter__(self) -> Iterator[Request]:
        order = self._order
        for request in self._admitted:
            while self._head is not None and order(self._head) < order(request):
                yield self._next_waiting(self._head)
            if request.state is RequestState.INCREMENT:
                yield request
        while self._head is not None:
            yield self._next_waiting(self._head)

    def _next_waiting(self, request: Request) -> Request:
        self._head = next(self._waiting, None)
        return request


class Scheduler:
    """Iteration-level scheduling over one pool and any number of pipelines."""

    def __init__(self, config: SchedulerConfig, pool: RequestPool) -> None:
        self.config = config
        self.pool = pool
        self._pipelines: dict[str, _Pipeline] = {}
        self._pipeline_of: dict[str, str] = {}

    def add_pipeline(self, pipeline: str, ledger: KvLedger) -> None:
        """Open `pipeline`: requests may be admitted to it."""
        self._pipelines[pipeline] = _Pipeline(ledger)

    def remove_pipeline(self, pipeline: str) -> list[Request]:
        """Close `pipeline`: returns its requests, rewound and waiting again, in their order."""
        requests = list(self._pipelines[pipeline].admitted)
        for request in requests:
            self.rewind(request)
        del self._pipelines[pipeline]
        return requests

    @property
    def num_running(self) -> int:
        """Requests that hold slots on any pipeline."""
        return len(self._pipeline_of)

    def in_flight(self, pipeline: str) -> int:
        """Algorithm 1's `n_scheduled` of one pipeline."""
        return self._pipelines[pipeline].in_flight

    def ledger(self, pipeline: str) -> KvLedger:
        """Return the ledger of one pipeline."""
        return self._pipelines[pipeline].ledger

    @property
    def ledgers(self) -> list[KvLedger]:
        """The ledgers of all pipelines."""
        return [state.ledger for state in self._pipelines.values()]

    # -- Algorithm 1 ---------------------------------------------------------------------------------

    def select(self, pipeline: str) -> Proposal:
        """Proposes the next batch (Algorithm 1, lines 17 to 28). Changes nothing.

        An admitted request that lacks blocks (policy `paged`) takes them from the last holders behind it in the order,
        which are to be preempted.
        """
        state, config = self._pipelines[pipeline], self.config
        if state.in_flight >= config.n_workers:
            return Proposal()
        room = _Room(state.ledger.num_free_blocks, config.token_budget)
        batch: list[Selection] = []
        candidates = _Candidates(self.pool, state.admitted, self.pool.order)
        batch_cap = self._batch_cap(state)
        for request in candidates:
            if len(batch) == batch_cap or room.num_tokens == 0 or request in room.preempted:
                break
            num_tokens = room.tokens_for(request)
            if request.state is RequestState.INITIATION:
                num_blocks = state.ledger.blocks_to_admit(request)
                if room.preempted or num_blocks > room.num_blocks:
                    candidates.end_admission()
                    continue
            else:
                num_blocks = state.ledger.blocks_to_grow(request, request.num_computed + num_tokens)
                if num_blocks > room.num_blocks and not self._preempt_for(request, num_blocks, state, room):
                    break
            room.take(num_blocks, num_tokens)
            batch.append(Selection(request, num_tokens))
        return Proposal(tuple(batch), tuple(room.preempted) if batch else ())

    def dispatch(self, pipeline: str, proposal: Proposal) -> Batch:
        """Preempts, reserves slots for those that begin and marks all RUNNING (lines 5 to 8)."""
        state = self._pipelines[pipeline]
        for victim in proposal.preempted:
            self.rewind(victim)
        scheduled = []
        for selection in proposal.selections:
            request, admitted = selection.request, selection.request.state is RequestState.INITIATION
            if admitted:
                self.pool.remove(request)
                new_blocks = state.ledger.admit(request).blocks
                bisect.insort(state.admitted, request, key=self.pool.order)
                self._pipeline_of[request.request_id] = pipeline
            else:
                new_blocks = state.ledger.grow(request, request.num_scheduled + selection.num_tokens)
            context_length = request.num_scheduled
            request.state = RequestState.RUNNING
            request.num_under_way += selection.num_tokens
            scheduled.append(
                ScheduledRequest(
                    request,
                    request.incarnation,
                    state.ledger.holding(request).row,
                    selection.num_tokens,
                    context_length,
                    tuple(new_blocks),
                    admitted,
                    samples=request.num_scheduled >= request.num_tokens,
                )
            )
        state.in_flight += 1
        return Batch(pipeline, tuple(scheduled))

    def commit(self, batch: Batch, tokens: list[int]) -> list[tuple[int, Request]]:
        """Take the result of a batch back (lines 10 to 15).

        Return the requests that got a token, each with that token's index. `tokens` has one entry for each
        scheduled request that samples, in order. Requests that were rewound or cancelled meanwhile are passed
        over: their result is stale. A request whose `finish_reason` is set has left, and its slots are free.

        Raises ValueError if the number of tokens is not what the batch asked for.
        """
        if len(tokens) != sum(scheduled.samples for scheduled in batch.requests):
            raise ValueError(f"the engine returned {len(tokens)} tokens for {batch}")
        if batch.pipeline in self._pipelines:
            self._pipelines[batch.pipeline].in_flight -= 1
        sampled = iter(enumerate(tokens))
        progressed = []
        for scheduled in batch.requests:
            index, token = next(sampled) if scheduled.samples else (-1, -1)
            request = scheduled.request
            if request.incarnation != scheduled.incarnation:
                continue
            request.num_computed += scheduled.num_tokens
            request.num_under_way -= scheduled.num_tokens
            request.state = RequestState.RUNNING if request.num_under_way else RequestState.INCREMENT
            if not scheduled.samples:
                continue
            request.append(token)
            progressed.append((index, request))
            if request.finish_reason is not None:
                self._release(request)
                request.finish(request.finish_reason)
        return progressed

    # -- at any moment -------------------------------------------------------------------------------

    def cancel(self, request: Request, reason: FinishReason = FinishReason.CANCELLED) -> None:
        """End `request` now, wherever it is; from the next select on it costs nothing."""
        if request.state is RequestState.FINISHED:
            return
        if request.request_id in self._pipeline_of:
            self._release(request)
        else:
            self.pool.remove(request)
        request.finish(reason)

    def rewind(self, request: Request) -> None:
        """Take the slots of an admitted request back and lets it wait again, all tokens kept."""
        self._release(request)
        request.rewind()
        self.pool.put_back(request)

    # -- inside --------------------------------------------------------------------------------------

    def _preempt_for(self, request: Request, num_blocks: int, state: _Pipeline, room: _Room) -> bool:
        """Preempts the last holders behind `request` until `num_blocks` are free; returns whether that is possible."""
        victims: list[Request] = []
        num_free = room.num_blocks
        for victim in reversed(state.admitted):
            if num_free >= num_blocks or victim is request:
                break
            if victim not in room.preempted:
                victims.append(victim)
                num_free += len(state.ledger.holding(victim).blocks)
        if num_free < num_blocks:
            return False
        room.preempted += victims
        room.num_blocks = num_free
        return True

    def _batch_cap(self, state: _Pipeline) -> int:
        """`max_batch_size`, or less where that keeps every stage busy.

        Live requests are those that hold slots here and this pipeline's share of those that could be
        admitted now, counted no further than matters.
        """
        if not self.config.balanced:
            return self.config.max_batch_size
        enough = self.config.max_batch_size * self.config.n_workers * len(self._pipelines)
        free_blocks, admissible = state.ledger.num_free_blocks, 0
        for request in self.pool:
            free_blocks -= state.ledger.blocks_to_admit(request)
            if free_blocks < 0 or admissible == enough:
                break
            admissible += 1
        live = len(state.admitted) + -(-admissible // len(self._pipelines))
        return min(self.config.max_batch_size, -(-live // self.config.n_workers))

    def _release(self, request: Request) -> None:
        state = self._pipelines[self._pipeline_of.pop(request.request_id)]
        state.ledger.release(request)
        order = self.pool.order
        del state.admitted[bisect.bisect_left(state.admitted, order(request), key=order)]
