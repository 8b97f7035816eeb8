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
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from orca_master.scheduling.kv_ledger import KvLedger
from orca_master.scheduling.request import FinishReason, Request, RequestState, by_arrival
from orca_master.scheduling.request_pool import RequestPool


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """Knobs of the scheduler. `token_budget` is in input tokens per iteration, None for no limit."""

    max_batch_size: int
    n_workers: int
    token_budget: int | None = None
    balanced: bool = True


@dataclass(frozen=True, slots=True)
class Selection:
    """A request that `select` proposes, with the number of its tokens to compute."""

    request: Request
    num_tokens: int


@dataclass(frozen=True, slots=True)
class Proposal:
    """What `select` proposes: a batch, empty if nothing can run, and whom to preempt to make room for it."""

    selections: tuple[Selection, ...] = ()
    preempted: tuple[Request, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.selections)


@dataclass(frozen=True, slots=True)
class ScheduledRequest:
    """One request's part of a dispatched batch: the row of an Iteration (protos/engine.proto)."""

    request: Request
    incarnation: int
    row: int
    num_tokens: int
    context_length: int
    new_blocks: tuple[int, ...]
    admitted: bool
    samples: bool


@dataclass(frozen=True, slots=True)
class Batch:
    """A dispatched batch: one iteration of one pipeline."""

    pipeline: str
    requests: tuple[ScheduledRequest, ...]


@dataclass(slots=True)
class _Pipeline:
    ledger: KvLedger
    in_flight: int = 0
    admitted: list[Request] = field(default_factory=list)
    """Requests that hold slots here, by arrival."""


class Scheduler:
    """Iteration-level scheduling over one pool and any number of pipelines."""

    def __init__(self, config: SchedulerConfig, pool: RequestPool) -> None:
        self.config = config
        self.pool = pool
        self._pipelines: dict[str, _Pipeline] = {}
        self._pipeline_of: dict[str, str] = {}

    def add_pipeline(self, pipeline: str, ledger: KvLedger) -> None:
        """Opens `pipeline`: requests may be admitted to it."""
        self._pipelines[pipeline] = _Pipeline(ledger)

    def remove_pipeline(self, pipeline: str) -> list[Request]:
        """Closes `pipeline`: returns its requests, rewound and waiting again, by arrival."""
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
        """The ledger of one pipeline."""
        return self._pipelines[pipeline].ledger

    # -- Algorithm 1 ---------------------------------------------------------------------------------

    def select(self, pipeline: str) -> Proposal:
        """Proposes the next batch (lines 17 to 28). Changes nothing.

        A request that holds slots but lacks blocks (policy `paged`) takes them from the youngest holders behind
        it, which are to be preempted.
        """
        state = self._pipelines[pipeline]
        if state.in_flight >= self.config.n_workers:
            return Proposal()
        cap, budget, ledger = self._batch_cap(state), self.config.token_budget, state.ledger
        free_blocks = ledger.num_free_blocks
        selections: list[Selection] = []
        preempted: list[Request] = []

        def admissible(request: Request) -> bool:
            return not preempted and ledger.blocks_to_admit(request) <= free_blocks

        for request in self._candidates(state, admissible):
            if len(selections) == cap or budget == 0:
                break
            if request in preempted:
                break  # so is everyone behind it
            num_tokens = request.num_uncomputed if budget is None else min(request.num_uncomputed, budget)
            if request.state is RequestState.INITIATION:
                free_blocks -= ledger.blocks_to_admit(request)
            else:
                lacking = ledger.blocks_to_grow(request, request.num_computed + num_tokens) - free_blocks
                victims = self._victims(state, request, lacking, preempted)
                if victims is None:
                    break
                preempted += victims
                free_blocks = sum((len(ledger.holding(victim).blocks) for victim in victims), -lacking)
            if budget is not None:
                budget -= num_tokens
            selections.append(Selection(request, num_tokens))
        return Proposal(tuple(selections), tuple(preempted) if selections else ())

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
                bisect.insort(state.admitted, request, key=by_arrival)
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
        """Takes the result of a batch back (lines 10 to 15).

        Returns the requests that got a token, each with that token's index. `tokens` has one entry for each
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
        """Ends `request` now, wherever it is; from the next select on it costs nothing."""
        if request.state is RequestState.FINISHED:
            return
        if request.request_id in self._pipeline_of:
            self._release(request)
        else:
            self.pool.remove(request)
        request.finish(reason)

    def rewind(self, request: Request) -> None:
        """Takes the slots of an admitted request back and lets it wait again, all tokens kept."""
        self._release(request)
        request.rewind()
        self.pool.put_back(request)

    # -- inside --------------------------------------------------------------------------------------

    def _candidates(self, state: _Pipeline, admissible: Callable[[Request], bool]) -> Iterator[Request]:
        """Selectable requests by arrival (lines 19 to 25).

        The first waiting request that is not admissible ends admission (`break`, never skip: no starvation). In
        the printed algorithm no admitted request can come behind it; after a rewind one can, and it goes on,
        because only its end frees the slots that the earlier one waits for.
        """
        waiting = iter(self.pool)
        head = next(waiting, None)
        for request in state.admitted:
            while head is not None and head.arrival < request.arrival:
                if not admissible(head):
                    head = None
                    break
                yield head
                head = next(waiting, None)
            if request.state is RequestState.INCREMENT:
                yield request
        while head is not None and admissible(head):
            yield head
            head = next(waiting, None)

    def _victims(
        self, state: _Pipeline, request: Request, lacking: int, preempted: list[Request]
    ) -> list[Request] | None:
        """The youngest holders behind `request` that free `lacking` blocks, or None if that is not enough."""
        victims: list[Request] = []
        for victim in reversed(state.admitted):
            if lacking <= 0:
                break
            if victim is request:
                return None
            if victim not in preempted:
                victims.append(victim)
                lacking -= len(state.ledger.holding(victim).blocks)
        return victims if lacking <= 0 else None

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
        del state.admitted[bisect.bisect_left(state.admitted, request.arrival, key=by_arrival)]
