"""`EngineMaster`: drives Algorithm 1 over its pipelines, on one event loop.

Per pipeline: select → dispatch → send until nothing can be selected or n_workers iterations are in
flight; a returned result is committed, its tokens are delivered, and the selection starts again. The
scheduler is only touched from this loop, so nothing is locked.

A lost worker ends its pipeline: its requests are rewound, and continue on another pipeline if one serves. Without one
they wait up to `recovery_timeout` for the pipeline to be formed again (keeper.py), and end with an error after that.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from orca_contract.kv_blocks import BLOCK_SIZE
from orca_contract.reasons import Reason
from orca_contract.state import EngineState, PipelinePhase
from orca_contract.topology import Topology
from orca_protos import engine_pb2 as pb

from orca_master.engine.config import EngineConfig
from orca_master.engine.faults import Evidence, WorkerLostError, closest
from orca_master.engine.in_flight import InFlight
from orca_master.engine.iteration_message import check_encodes
from orca_master.engine.membership import Membership
from orca_master.engine.messages import EngineObserver, Output, Submission
from orca_master.engine.pipeline import Pipeline
from orca_master.engine.request_limits import check_fits, check_values
from orca_master.errors import ConfigurationError, EngineUnavailableError, RequestError
from orca_master.scheduling.kv_ledger import LEDGERS, KvLedger
from orca_master.scheduling.lookahead import look_ahead
from orca_master.scheduling.request import FinishReason, Request
from orca_master.scheduling.request_pool import RequestPool
from orca_master.scheduling.scheduler import Proposal, Scheduler, SchedulerConfig

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Serving:
    """A serving pipeline with its iterations in flight."""

    pipeline: Pipeline
    ledger: KvLedger
    in_flight: InFlight = field(default_factory=InFlight)
    broken: asyncio.Future[Exception] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    """Has the unexpected exception of a selection or dispatch, after which nothing is sent any more."""


class EngineMaster:
    """Scheduler and pipelines of one model. All methods but the properties belong to one event loop."""

    def __init__(
        self,
        topology: Topology,
        config: EngineConfig,
        deliver: Callable[[list[Output]], None],
        observer: EngineObserver,
    ) -> None:
        self.state = EngineState.LOADING
        self.failure = ""
        self.num_iterations = 0
        """Iterations that have returned."""
        self.progressed_at = time.monotonic()
        """When an iteration returned or a pipeline began to serve, in seconds of the monotonic clock."""
        self.facts = pb.ModelFacts()
        self.membership = Membership(topology, config, self._serve, self._note_failure)
        # The tokens that a look-ahead needs are where they were sampled: on the ranks of the one partition.
        self._looks_ahead = config.lookahead and topology.pipeline_parallel_size == 1
        self._config = config
        self._deliver = deliver
        self._observer = observer
        self._requests: dict[str, Request] = {}
        self._num_arrived = 0
        self.pool = RequestPool(config.max_queued_requests, config.max_queued_tokens)
        self.scheduler = Scheduler(
            self._scheduler_config(),
            self.pool,
        )
        self._serving: dict[str, _Serving] = {}
        self._started: asyncio.Future[None] | None = None
        self._out_of_patience: asyncio.TimerHandle | None = None

    @property
    def num_slots(self) -> int:
        """K/V slots of the largest pipeline."""
        return max((ledger.num_blocks for ledger in self._ledgers()), default=0) * BLOCK_SIZE

    @property
    def cache_usage(self) -> float:
        """Held share of all K/V slots, in [0, 1]."""
        total = sum(ledger.num_blocks for ledger in self._ledgers())
        return 1 - sum(ledger.num_free_blocks for ledger in self._ledgers()) / total if total else 0.0

    def _ledgers(self) -> list[KvLedger]:
        # Also read by the endpoint's thread: one copy, made in one step.
        return [serving.ledger for serving in list(self._serving.values())]

    async def start(self) -> None:
        """Returns when the engine serves.

        Without a recovery timeout every pipeline must be formed, else it raises ConfigurationError or WorkerLostError;
        with one it waits for the first, however long its workers take to come.
        """
        self._started = asyncio.get_running_loop().create_future()
        self.membership.begin()
        try:
            await self._started
        except Exception:
            self.state, self.failure = EngineState.FAILED, "the engine did not start"
            raise

    async def stop(self, reason: str) -> None:
        """Ends what runs with an error; shuts the workers down if nobody else looks after them."""
        self.state = EngineState.STOPPED
        await self.membership.end()
        self._fail_requests(f"the server stops: {reason}")
        part, keepers = self.membership.part, self.membership.keepers.values()
        await asyncio.gather(*(part(keeper.pipeline, reason) for keeper in keepers))

    def reconfigure(self, config: EngineConfig) -> None:
        """Changes the limits of batch, iteration and queue from the next selection on."""
        self._config = self.membership.config = config
        self.scheduler.config = self._scheduler_config()
        self.pool.max_requests, self.pool.max_tokens = config.max_queued_requests, config.max_queued_tokens
        self._dispatch()

    def submit(self, submission: Submission) -> None:
        """Takes a request into the pool.

        Before `start` has returned it waits there. Raises QueueFullError, EngineUnavailableError, or
        RequestError for a request that can never fit or that the protocol cannot carry.
        """
        if self.state in (EngineState.FAILED, EngineState.STOPPED):
            raise EngineUnavailableError(self.failure or "the server stops")
        request = Request(
            submission.request_id,
            self._num_arrived,
            submission.prompt,
            submission.max_gen_tokens,
            submission.sampling,
            submission.stop_token_ids,
        )
        check_encodes(request)
        if self.state is EngineState.SERVING:
            self._check_fits(request)
        self.pool.add(request)
        self._num_arrived += 1
        self._requests[request.request_id] = request
        self._dispatch()

    def cancel(self, request_id: str) -> None:
        """Ends a request; one that has ended already is no error."""
        request = self._requests.pop(request_id, None)
        if request is not None:
            self.scheduler.cancel(request)
            self._dispatch()

    # -- inside --------------------------------------------------------------------------------------

    def _check_fits(self, request: Request) -> None:
        check_fits(request, self.facts.max_model_len, self.num_slots)
        check_values(request, self.facts.vocabulary_size)

    def _refuse_misfits(self) -> None:
        """Ends waiting requests that exceed limits which were not known, or not in force, when they came."""
        for request in list(self.pool):
            try:
                self._check_fits(request)
            except RequestError as error:
                self.scheduler.cancel(request, FinishReason.ERROR)
                del self._requests[request.request_id]
                self._deliver([Output(request.request_id, None, FinishReason.ERROR, str(error))])

    def _scheduler_config(self) -> SchedulerConfig:
        config = self._config
        return SchedulerConfig(
            config.max_batch_size, self.membership.topology.pipeline_parallel_size, config.token_budget, config.balanced
        )

    def _note_failure(self, error: BaseException) -> None:
        """A keeper that gave up before the start fails the start."""
        if self._started is not None and not self._started.done():
            self._started.set_exception(error)
        elif not isinstance(error, ConfigurationError | WorkerLostError):
            logger.error("the engine fails: a pipeline is no longer kept", exc_info=error)
            self.state, self.failure = EngineState.FAILED, f"internal error: {error!r}"
            self._fail_requests(self.failure)

    def _admit(self, pipeline: Pipeline) -> _Serving:
        """Opens a formed pipeline; the engine serves with the first, or, before the start, with all of them."""
        self.progressed_at = time.monotonic()
        ledger = LEDGERS[self._config.admission](pipeline.num_blocks)
        self.scheduler.add_pipeline(pipeline.id, ledger)
        serving = self._serving[pipeline.id] = _Serving(pipeline, ledger)
        assert self._started is not None
        complete = len(self._serving) == len(self.membership.keepers) or self._started.done()
        if self.state is not EngineState.FAILED and (complete or self._config.recovery_timeout):
            self.facts = pipeline.facts
            self.state, self.failure = EngineState.SERVING, ""
            if self._out_of_patience is not None:
                self._out_of_patience.cancel()
            if not self._started.done():
                self._started.set_result(None)
            self._refuse_misfits()
            self._dispatch()
        return serving

    async def _serve(self, pipeline: Pipeline) -> WorkerLostError:
        """Runs a formed pipeline until it is lost, and returns why."""
        serving = self._admit(pipeline)
        messages = asyncio.create_task(
            pipeline.serve(
                lambda result: self._commit(serving, result),
                lambda timing: self._observer.on_timing(pipeline.id, timing),
            )
        )
        # Without a worker's own report of a cause the deadline is all that is known.
        own = [
            WorkerLostError(
                f"an iteration did not return within {self._config.stall_timeout:.0f} s",
                Reason.ENGINE_STALLED,
                evidence=Evidence.GONE,
            )
        ]
        try:
            ends: set[asyncio.Future[Any]] = {messages, serving.in_flight.stalled, serving.broken}
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if serving.broken.done():
                own = [WorkerLostError(f"internal error: {serving.broken.result()!r}")]
            elif messages.done():
                own = []
                if (error := messages.exception()) is not None:
                    logger.error("pipeline %s failed on a message", pipeline.id, exc_info=error)
                    internal = WorkerLostError(f"internal error: {error!r}")
                    own = [error if isinstance(error, WorkerLostError) else internal]
        except asyncio.CancelledError:
            own = [WorkerLostError("it left the topology, or the engine stops")]
            raise
        finally:
            serving.in_flight.stop()
            messages.cancel()
            await asyncio.gather(messages, return_exceptions=True)
            self._close(pipeline, str(closest([*own, *pipeline.reported])))
        # The requests are free to go on elsewhere; the cause may still be on its way.
        lost = closest([*own, *await pipeline.reported_until_conclusive()])
        logger.error("pipeline %s is lost: %s", pipeline.id, lost)
        if not self._serving and self.state is EngineState.FAILED:
            self.failure = f"pipeline {pipeline.id} is lost: {lost}"
            self._fail_requests(self.failure)
        await self.membership.part(pipeline, str(lost))
        return lost

    def _close(self, pipeline: Pipeline, reason: str) -> None:
        """Takes a pipeline out of the scheduler: its requests wait again."""
        pipeline.phase = PipelinePhase.RECOVERING
        del self._serving[pipeline.id]
        self.scheduler.remove_pipeline(pipeline.id)
        if self._serving:
            self._refuse_misfits()  # the lost one may have been the largest
        elif self.state is EngineState.SERVING:
            patience = self._config.recovery_timeout
            self.state = EngineState.RECOVERING if patience else EngineState.FAILED
            self.failure = f"pipeline {pipeline.id} is lost: {reason}"
            if patience:
                loop = asyncio.get_running_loop()
                self._out_of_patience = loop.call_later(patience, lambda: self._fail_requests(self.failure))
        self._dispatch()

    def _dispatch(self) -> None:
        """Sends what can be selected, the pipeline with the fewest iterations in flight first."""
        while self.state is EngineState.SERVING:
            working = [serving for serving in self._serving.values() if not serving.broken.done()]
            for serving in sorted(working, key=lambda serving: len(serving.in_flight)):
                if self._advance(serving, lambda serving: self.scheduler.select(serving.pipeline.id)):
                    break
            else:
                for serving in working:
                    if self._looks_ahead and len(serving.in_flight) == 1 and not serving.broken.done():
                        self._advance(serving, lambda serving: look_ahead(self.scheduler, serving.in_flight.newest))
                return

    def _advance(self, serving: _Serving, select: Callable[[_Serving], Proposal]) -> bool:
        """Sends what `select` proposes; whether it proposed anything.

        An unexpected exception leaves the scheduler and the pipeline at odds: it ends this pipeline with a logged error
        (`_serve`), instead of stopping the engine without a word.
        """
        try:
            proposal = select(serving)
            if proposal:
                self._send(serving, proposal)
        except Exception as error:
            logger.exception("pipeline %s is given up after an internal error", serving.pipeline.id)
            serving.broken.set_result(error)
            return False
        return bool(proposal)

    def _send(self, serving: _Serving, proposal: Proposal) -> None:
        batch = self.scheduler.dispatch(serving.pipeline.id, proposal)
        sequence = serving.pipeline.send(batch)
        serving.in_flight.add(sequence, batch, self._config.stall_timeout)
        self._observer.on_dispatch(sequence, batch)
        if proposal.preempted:
            self._observer.on_preemption(len(proposal.preempted))

    def _commit(self, serving: _Serving, result: pb.IterationResult) -> None:
        batch = serving.in_flight.take(result.sequence, self._config.stall_timeout)
        self.num_iterations += 1
        self.progressed_at = time.monotonic()
        outputs = []
        logprobs = {found.index: found for found in result.logprobs}
        for index, request in self.scheduler.commit(batch, list(result.token)):
            outputs.append(
                Output(request.request_id, request.generated[-1], request.finish_reason, logprobs=logprobs.get(index))
            )
            if request.finish_reason is not None:
                del self._requests[request.request_id]
        self._dispatch()
        if outputs:
            self._deliver(outputs)

    def _fail_requests(self, reason: str) -> None:
        requests = list(self._requests.values())
        self._requests.clear()
        self._deliver([Output(request.request_id, None, FinishReason.ERROR, reason) for request in requests])
        for request in requests:
            self.scheduler.cancel(request, FinishReason.ERROR)
