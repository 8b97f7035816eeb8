"""`Dispatcher`: selects and sends iterations: per pipeline select → dispatch → send.

The pipeline with the fewest iterations in flight goes first; of several, the one whose prefix cache has most of the
first waiting request. With one partition an iteration is also sent before the tokens of the one in flight are known
(scheduling/lookahead.py). Where a new request could join it, it is sent shortly before they are expected, so that a
request that arrives meanwhile need not wait for one more iteration.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable

from orca_master.engine.config import EngineConfig
from orca_master.engine.expected_wait import ExpectedWait
from orca_master.engine.faults import WorkerLostError
from orca_master.engine.losses import Losses
from orca_master.engine.messages import EngineObserver
from orca_master.engine.pipeline_set import PipelineSet
from orca_master.engine.supervisor import PipelineSupervisor
from orca_master.engine.token_masks import TokenMasks
from orca_master.scheduling.batch import Batch, Proposal
from orca_master.scheduling.lookahead import look_ahead
from orca_master.scheduling.prompt_budget import PromptBudget
from orca_master.scheduling.scheduler import Scheduler

logger = logging.getLogger(__name__)

LATEST_PART = 0.75
"""Of the expected time of the iteration in flight, after which the next one is sent ahead at the latest."""
LEAD_SECONDS = 0.004
"""At least so long before the expected result; a worker that had to wait would lose 1.4 ms (benchmarks/options.md)."""


class Dispatcher:
    """Sends the iterations of `scheduler` to the serving pipelines of `pipelines`.

    `expected_wait`, `masks` and `observer` learn of each iteration, `losses` of the requests of one that could not be
    sent.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        pipelines: PipelineSet,
        expected_wait: ExpectedWait,
        losses: Losses,
        masks: TokenMasks,
        observer: EngineObserver,
        config: EngineConfig,
    ) -> None:
        self._scheduler = scheduler
        self._pipelines = pipelines
        self._expected_wait = expected_wait
        self._losses = losses
        self._masks = masks
        self._observer = observer
        # The rank that sampled a token reads it as input: only with one partition.
        self._looks_ahead = scheduler.config.looks_ahead
        self._target_itl = config.target_itl
        self._timer: asyncio.TimerHandle | None = None
        """Until the next iteration that is sent ahead."""

    def dispatch(self) -> None:
        """Send iterations until no request can be selected."""
        if (budget := self._prompt_budget()) is not None:  # None also after equal iterations: the last budget stays
            self._scheduler.prompt_budget = budget
        self._scheduler.draft_costs = self._expected_wait.draft_costs.costs
        while True:
            working = [supervisor for supervisor in self._pipelines.serving.values() if supervisor.is_open]
            for supervisor in sorted(working, key=self._precedence) if len(working) > 1 else working:
                if self._advance(supervisor, lambda entry: self._scheduler.select(entry.id)):
                    break
            else:
                if self._looks_ahead:
                    self._look_ahead()
                return

    def _look_ahead(self) -> None:
        """Send iterations ahead where it is time, and do so again when it is time for the next one."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        now, later = time.monotonic(), math.inf
        for supervisor in list(self._pipelines.serving.values()):
            if supervisor.num_in_flight != 1 or not supervisor.is_open:
                continue
            if (due := self._look_ahead_due(supervisor)) > now:
                later = min(later, due)
            else:
                self._advance(supervisor, lambda entry: look_ahead(self._scheduler, entry.newest_batch))
        if later < math.inf:
            self._timer = asyncio.get_running_loop().call_later(later - now, self._look_ahead)

    def _look_ahead_due(self, supervisor: PipelineSupervisor) -> float:
        """Return the time of the monotonic clock; the past if no new request could join the next iteration anyway."""
        ledger, batch = self._scheduler.ledger(supervisor.id), supervisor.newest_batch
        if ledger.num_holders >= self._scheduler.config.max_batch_size:
            return 0.0
        begun, seconds = self._expected_wait.expected_time(batch)
        return begun + min(LATEST_PART * seconds, seconds - LEAD_SECONDS)

    def _prompt_budget(self) -> PromptBudget | None:
        config = self._scheduler.config
        if self._target_itl is not None:
            # A request has a token in one of these iterations that the pipeline returns.
            return self._expected_wait.prompt_budget(self._target_itl / config.most_in_flight)
        return self._expected_wait.even_prompt_budget() if config.balanced and config.n_workers > 1 else None

    def _precedence(self, supervisor: PipelineSupervisor) -> tuple[int, int]:
        head = next(iter(self._scheduler.pool), None)
        cached = () if head is None else self._scheduler.ledger(supervisor.id).cached_blocks(head)
        return supervisor.num_in_flight, -len(cached)

    def _advance(self, supervisor: PipelineSupervisor, select: Callable[[PipelineSupervisor], Proposal]) -> bool:
        """Dispatch and send the proposal of `select`; return False if the proposal is empty.

        After an unexpected exception scheduler and workers may disagree. The exception is logged and this pipeline is
        abandoned, so that the engine continues.
        """
        proposal = Proposal()
        try:
            proposal = select(supervisor)
            if proposal:
                batch, now = self._scheduler.dispatch(supervisor.id, proposal), time.monotonic()
                _note_sent(supervisor.id, batch, now)
                self._expected_wait.note_sent(batch, now)
                sequence = supervisor.send(batch)
                self._masks.note_sent(supervisor, sequence, batch)
                self._masks.advance(supervisor)
                self._observer.on_dispatch(sequence, batch)
            if proposal.preempted:
                self._observer.on_preemption(len(proposal.preempted))
                for request in proposal.preempted:
                    request.num_preemptions += 1
        except Exception as error:
            logger.exception("pipeline %s is abandoned after an internal error", supervisor.id)
            self._losses.note(supervisor.id, (selection.request for selection in proposal.selections))
            supervisor.give_up(WorkerLostError(f"internal error: {error!r}"))
            return False
        return bool(proposal)


def _note_sent(pipeline: str, batch: Batch, now: float) -> None:
    """Note a batch in its requests: pipeline, time of a first iteration, and that the draft model is to draft."""
    for scheduled in batch.requests:
        if scheduled.admitted:
            scheduled.request.pipeline = pipeline
            if scheduled.incarnation == 0:
                scheduled.request.admitted_at = now
        if scheduled.num_drafts and scheduled.request.drafter is not None:
            scheduled.request.drafter.note_drafting()
