"""`Scheduler`: Algorithm 1 of the paper. Pure: no I/O, no clock, no asyncio, no gRPC.

Each iteration of a pipeline takes three calls: `select` proposes a batch and changes nothing, `dispatch`
reserves slots and marks the requests RUNNING, `commit` records the sampled tokens.
`rewind`, `cancel`, `set_admission` and `set_order` may be called between any two iterations.

Extensions of the printed algorithm, each of which can be disabled:
- Balanced batches: with fewer live requests than `max_batch_size` x `n_workers` the printed algorithm
  puts all requests into one batch and leaves the other stages idle. A batch is capped at
  ceil(live / n_workers). Stages that would be idle still compute parts of a prompt (candidates.py).
- Token budget (chunked prefill): a long prompt is computed in chunks, to bound the latency of other requests, and with
  several stages also to make iterations equally long (prompt_budget.py).
- Spare iteration: with several stages one more iteration is in flight (spare_iteration.py).
- Paged admission: slots on demand; the youngest requests are preempted when slots run out (kv_ledger.py).
- Shared prefixes: a request that begins with the tokens of another one shares its blocks (prefix_cache.py).
- Speculative decoding: drafted tokens are computed beside the last token of an answer (speculation.py).
- Several pipelines share one pool (docs/contracts.md, section 2, FCFS).
- Two service classes: requests of batches come after all interactive requests (policies.py, candidates.py).
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from orca_contract.kv_blocks import BLOCK_SIZE

from orca_master.scheduling.batch import Batch, Proposal, ScheduledRequest, Selection
from orca_master.scheduling.batch_cap import batch_cap
from orca_master.scheduling.candidates import Candidates, increments, pipelined_prompts
from orca_master.scheduling.draft_costs import DraftCosts
from orca_master.scheduling.kv_ledger import KvLedger
from orca_master.scheduling.policies import Order
from orca_master.scheduling.prompt_budget import PromptBudget
from orca_master.scheduling.request import FinishReason, Request, RequestState
from orca_master.scheduling.request_pool import RequestPool
from orca_master.scheduling.room import Room
from orca_master.scheduling.scheduler_config import SchedulerConfig
from orca_master.scheduling.spare_iteration import may_be_spare, num_batches
from orca_master.scheduling.speculation import num_accepted, with_drafts


@dataclass(slots=True)
class _Pipeline:
    ledger: KvLedger
    in_flight: int = 0
    admitted: list[Request] = field(default_factory=list)
    """Requests that hold slots here, in the order of the policy."""


class Scheduler:
    """Iteration-level scheduling over one pool and any number of pipelines."""

    def __init__(self, config: SchedulerConfig, pool: RequestPool) -> None:
        self.config = config
        self.pool = pool
        self._pipelines: dict[str, _Pipeline] = {}
        self._pipeline_of: dict[str, str] = {}
        self._suspects: list[Request] = []
        """Requests that run alone."""
        self.prompt_budget = PromptBudget()
        """Set as costs are measured, like `draft_costs`."""
        self.draft_costs = DraftCosts()
        self.num_pipeline_changes = 0
        """How often a pipeline has been added or removed."""

    def add_pipeline(self, pipeline: str, ledger: KvLedger) -> None:
        """Add `pipeline`, so that requests can be admitted to it."""
        self._pipelines[pipeline] = _Pipeline(ledger)
        self.num_pipeline_changes += 1

    def remove_pipeline(self, pipeline: str) -> list[Request]:
        """Remove `pipeline`, rewind its requests and return them in their order."""
        requests = list(self._pipelines[pipeline].admitted)
        for request in requests:
            self.rewind(request)
        del self._pipelines[pipeline]
        self.num_pipeline_changes += 1
        return requests

    def computing(self, pipeline: str) -> list[Request]:
        """Return the requests with tokens in the iterations in flight."""
        return [request for request in self._pipelines[pipeline].admitted if request.num_tokens_in_flight]

    @property
    def num_running(self) -> int:
        """Number of requests that hold slots on any pipeline."""
        return len(self._pipeline_of)

    @property
    def admitted(self) -> list[Request]:
        """The requests that hold slots on any pipeline."""
        return [request for admitted in self.admitted_by_pipeline for request in admitted]

    @property
    def admitted_by_pipeline(self) -> list[Sequence[Request]]:
        """The requests that hold slots on each pipeline."""
        return [state.admitted for state in self._pipelines.values()]

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
        """Propose the next batch (Algorithm 1, lines 17 to 28). Change nothing.

        If an admitted request lacks blocks (policy `paged`), the proposal preempts the last admitted requests of the
        order for it. For an interactive request that waits, it preempts requests of batches.
        """
        state = self._pipelines[pipeline]
        if state.in_flight >= self.config.most_in_flight:
            return Proposal()
        self._suspects = [request for request in self._suspects if request.runs_alone and request.finish_reason is None]
        here = (entry for entry in self._suspects if self._pipeline_of.get(entry.request_id, pipeline) == pipeline)
        alone = [entry for entry in here if not entry.awaits_cause and state.ledger.can_finish(entry)]
        if not alone:
            cap, divided_by = self.config.max_batch_size, num_batches(self.config, state.admitted)
            if self.config.balanced:
                cap = batch_cap(cap, divided_by, self.pool, state.ledger, len(state.admitted), len(self._pipelines))
            proposal = self._fill(state, self.pool, increments(state.admitted), cap)
            if not proposal and self.config.balanced and (prompts := pipelined_prompts(state.admitted)):
                proposal = self._fill(state, (), prompts, 1)
            if state.in_flight < divided_by or may_be_spare(self.config, proposal, state.admitted):
                return proposal
            return Proposal()
        if state.in_flight:
            return Proposal()
        waiting = [request for request in self.pool if request in alone]
        proposal = self._fill(state, waiting, [request for request in state.admitted if request in alone], 1)
        others = [request for request in state.admitted if request not in alone]
        # Without blocks for a suspect the others run on and free some.
        return proposal or self._fill(state, (), others, self.config.max_batch_size)

    def _fill(
        self, state: _Pipeline, waiting: Iterable[Request], admitted: Iterable[Request], batch_cap: int
    ) -> Proposal:
        """Fill a batch with at most `batch_cap` of the waiting requests and those `admitted` ones that may be in it."""
        prompts = self.prompt_budget.limit(state.admitted, len(self.pool), self.config)
        room = Room.of(state.ledger, self.config.token_budget, prompts, state.admitted, self.prompt_budget.enough)
        batch: list[Selection] = []
        candidates = Candidates(waiting, admitted, self.pool.order)
        for request in candidates:
            if len(batch) == batch_cap or room.num_tokens == 0 or request in room.preempted:
                break
            num_shared_blocks = 0
            if request.state is RequestState.INITIATION:
                if request.awaits_cause or not state.ledger.can_finish(request):
                    candidates.pass_over(request)  # waits for a cause (losses.py), or for a larger pipeline
                    continue
                cost = room.cost_of(request)
                if cost.waits_for_prefix:
                    candidates.wait_for_prefix(request, self.config.max_batch_size)
                    continue
                if not room.can_admit(cost) and not room.preempt_batches(request, cost, state.admitted):
                    candidates.end_admission()
                    continue
                num_shared_blocks = cost.num_shared_blocks
                room.admit(cost)
            elif (room.is_full or not room.num_prompt_logprobs) and not room.can_continue(request):
                continue
            start = request.num_scheduled + num_shared_blocks * BLOCK_SIZE
            num_tokens = room.tokens_for(request, start)
            if request.state is not RequestState.INITIATION:
                num_blocks = state.ledger.blocks_to_grow(request, start + num_tokens)
                if not room.grow(request, num_blocks, state.admitted):
                    break
            room.compute(request, start, num_tokens)
            batch.append(Selection(request, num_tokens, num_shared_blocks))
        if self.config.speculative_tokens:
            batch = with_drafts(batch, room, self.config, self.draft_costs)
        return Proposal(tuple(batch), tuple(room.preempted) if batch else (), room.is_full)

    def dispatch(self, pipeline: str, proposal: Proposal) -> Batch:
        """Preempt requests, reserve slots for those that start and mark all RUNNING (lines 5 to 8)."""
        ledger = (state := self._pipelines[pipeline]).ledger
        for victim in proposal.preempted:
            self.rewind(victim)
        shared = (entry for entry in proposal.selections if entry.num_shared_blocks)
        held = {entry.request: ledger.hold_shared(entry.request, entry.num_shared_blocks) for entry in shared}
        scheduled = []
        for selection in proposal.selections:
            request, samples = selection.request, selection.samples
            if admitted := request.state is RequestState.INITIATION:
                self.pool.remove(request)
                new_blocks = tuple(ledger.admit(request, selection.num_shared_blocks, held.get(request, ())).blocks)
                request.begin(selection.num_shared_blocks * BLOCK_SIZE)
                bisect.insort(state.admitted, request, key=self.pool.order)
                self._pipeline_of[request.request_id] = pipeline
            else:
                new_blocks = tuple(ledger.grow(request, request.num_scheduled + selection.num_slots))
            context_length = request.num_scheduled
            request.state = RequestState.RUNNING
            request.num_tokens_in_flight += selection.num_inputs
            ledger.note_contents(request, min(context_length + selection.num_inputs, request.num_tokens))
            scheduled.append(
                ScheduledRequest(
                    request,
                    request.incarnation,
                    ledger.holding(request).row,
                    selection.num_tokens,
                    context_length,
                    new_blocks,
                    admitted,
                    samples,
                    selection.draft,
                    selection.num_drafts,
                    samples and request.is_masked_at(context_length + selection.num_tokens - len(request.prompt)),
                )
            )
        state.in_flight += 1
        return Batch(pipeline, tuple(scheduled), ledger.collect_cache_use(), proposal.is_full)

    def commit(self, batch: Batch, tokens: list[int]) -> list[tuple[int, Request]]:
        """Record the result of a batch (lines 10 to 15).

        Return the requests that got tokens, once for each token, with its index. `tokens` has one entry for each
        scheduled request that samples and one for each drafted token, in order. Requests that were rewound or
        cancelled in the meantime are skipped: their result is stale. A request with a `finish_reason` has ended, also
        an embedding, which gets no token; its slots are free.

        Raises ValueError if the number of tokens is not the number of those that the batch samples.
        """
        if len(tokens) != sum(scheduled.num_sampled for scheduled in batch.requests):
            raise ValueError(f"the engine returned {len(tokens)} tokens for {batch}")
        if batch.pipeline in self._pipelines:
            self._pipelines[batch.pipeline].in_flight -= 1
        progressed, end = [], 0
        for scheduled in batch.requests:
            start, end = end, end + scheduled.num_sampled
            request = scheduled.request
            if request.incarnation != scheduled.incarnation:
                continue
            accepted = num_accepted(scheduled.draft, tokens[start:end])
            request.num_computed += scheduled.num_tokens + accepted
            request.num_tokens_in_flight -= scheduled.num_inputs
            request.state = RequestState.RUNNING if request.num_tokens_in_flight else RequestState.INCREMENT
            for index in range(start, start + accepted + 1 if scheduled.samples else start):
                request.append(tokens[index])
                progressed.append((index, request))
                if request.finish_reason is not None:
                    self.cancel(request, request.finish_reason)
                    break
            if request.pooling is not None and not request.num_uncomputed:
                self.cancel(request, FinishReason.STOP)
        return progressed

    # -- at any moment -------------------------------------------------------------------------------

    def cancel(self, request: Request, reason: FinishReason = FinishReason.CANCELLED) -> None:
        """Finish `request`, waiting or admitted, and free its slots."""
        if request.state is RequestState.FINISHED:
            return
        if request.request_id in self._pipeline_of:
            self._release(request)
        else:
            self.pool.remove(request)
        request.finish(reason)

    def rewind(self, request: Request) -> None:
        """Free the slots of an admitted request and put the request back into the pool with all its tokens."""
        self._release(request)
        request.rewind()
        self.pool.put_back(request)

    def set_admission(self, ledger_type: type[KvLedger]) -> None:
        """Admit requests by the policy of `ledger_type` from now on; admitted requests keep their blocks."""
        for state in self._pipelines.values():
            if type(state.ledger) is not ledger_type:
                state.ledger = ledger_type.adopt(state.ledger)

    def set_order(self, order: Order) -> None:
        """Serve requests in another order from now on; admitted requests keep their blocks and may pause."""
        self.pool.reorder(order)
        for state in self._pipelines.values():
            state.admitted.sort(key=order)

    def suspect(self, request: Request) -> None:
        """Count a loss against a live `request`, which from LOSSES_BEFORE_ALONE on shares no pipeline at work."""
        request.num_losses += 1
        if request.runs_alone and request not in self._suspects:
            self._suspects.append(request)

    # -- inside --------------------------------------------------------------------------------------

    def _release(self, request: Request) -> None:
        state = self._pipelines[self._pipeline_of.pop(request.request_id)]
        state.ledger.release(request)
        del state.admitted[bisect.bisect_left(state.admitted, self.pool.order(request), key=self.pool.order)]
