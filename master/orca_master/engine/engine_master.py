"""`EngineMaster`: runs Algorithm 1 over all pipelines, on one event loop.

Iterations are sent (dispatcher.py) until no request can be selected or `most_in_flight` are in flight. Each result is
committed, the next iterations are sent, and the tokens are delivered. No lock: only this event loop uses the scheduler.

| state | meaning | next states |
|---|---|---|
| loading | the first pipeline is formed; at a first start all, unless WorkerOwner.CLUSTER | serving, paused, failed |
| serving | at least one pipeline serves | recovering, paused, failed |
| recovering | no pipeline serves; requests wait up to `recovery_timeout` without progress | serving, paused, failed |
| paused | the topology has no pipelines and is closed: requests are refused | loading, recovering |
| failed | no pipeline recovers, or an internal error occurred | |
| stopped | `stop` was called, in any state | |
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from orca_contract.state import EngineState
from orca_contract.topology import Topology
from orca_protos import engine_pb2 as pb

from orca_master.engine.admission import Admission
from orca_master.engine.config import EngineConfig, WorkerOwner
from orca_master.engine.demand import Demand
from orca_master.engine.dispatcher import Dispatcher
from orca_master.engine.faults import WorkerLostError
from orca_master.engine.live_requests import LiveRequests
from orca_master.engine.losses import Losses
from orca_master.engine.messages import EngineObserver, Output, Submission
from orca_master.engine.patience import Patience
from orca_master.engine.pipeline import Pipeline
from orca_master.engine.pipeline_set import NO_PIPELINES, PipelineSet
from orca_master.engine.progress import stall_bound
from orca_master.engine.request_limits import check_priority
from orca_master.engine.snapshot import EngineSnapshot, LoadedBytes
from orca_master.engine.supervisor import PipelineSupervisor
from orca_master.engine.token_masks import TokenMasks
from orca_master.engine.workers import MakeWorkers
from orca_master.errors import ConfigurationError, EngineUnavailableError
from orca_master.scheduling.batch import Batch
from orca_master.scheduling.kv_ledger import LEDGERS, kv_usage
from orca_master.scheduling.policies import POLICIES
from orca_master.scheduling.request import Request
from orca_master.scheduling.scheduler import Scheduler

logger = logging.getLogger(__name__)


class EngineMaster:
    """Scheduler and pipelines of one model. Call all methods on one event loop; any thread may read `snapshot`."""

    def __init__(
        self,
        topology: Topology,
        config: EngineConfig,
        deliver: Callable[[list[Output]], None],
        observer: EngineObserver,
        make_workers: MakeWorkers = Pipeline,
    ) -> None:
        self.snapshot = EngineSnapshot(EngineState.LOADING, "", topology, progressed_at=time.monotonic())
        self.pool = config.new_pool()
        self.scheduler = Scheduler(config.for_scheduler(topology), self.pool)
        self._state, self._failure = EngineState.LOADING, ""
        self.config, self._deliver = config, deliver
        self._pipelines = PipelineSet(topology, self, make_workers, config.runtime_adapters)
        self.adapters = self._pipelines.adapters
        self.on_departure, self.begin_drain = self._pipelines.departures.note, self._pipelines.departures.begin_drain
        self._admission = Admission(self.scheduler, config)
        ends = deliver, observer, self.on_change
        self._requests = LiveRequests(self.scheduler, self._admission, self._pipelines.check_fits, *ends)
        self.demand, self._losses = Demand(self._requests), Losses(self.scheduler, self._requests.fail_alone)
        self._masks = TokenMasks(self._requests.fail_constrained)
        shared = self.scheduler, self._pipelines, self._admission.expected_wait, self._losses, self._masks
        self._dispatcher = Dispatcher(*shared, observer, config)
        self._num_iterations, self._progressed_at = 0, self.snapshot.progressed_at
        self.failed = asyncio.Event()
        """Set when the engine has failed and the errors of its requests are on their way."""
        self._started: asyncio.Future[None] | None = None
        self._patience = Patience(config.recovery_timeout, config.max_recovery_wait, self._fail_requests)
        self.on_progress, self.on_timing = self._patience.note_progress, observer.on_timing
        self._applying = asyncio.Lock()
        self.adapters.watch(self._requests, self.on_change, self.on_progress)

    async def start(self) -> None:
        """Form the pipelines and return when the engine serves.

        All pipelines must form; ConfigurationError or WorkerLostError otherwise. A restarted engine serves with the
        first pipeline. With WorkerOwner.CLUSTER `start` waits for the first pipeline without a time limit.
        """
        self._started = asyncio.get_running_loop().create_future()
        self._pipelines.begin(self.config)  # `apply` may have begun some
        try:
            await self._started
        except Exception:
            self._enter(EngineState.FAILED, "the engine did not start")
            raise

    async def stop(self, reason: str) -> None:
        """Fail all requests; shut the workers down if the engine owns them."""
        self._enter(EngineState.STOPPED, f"the server stops: {reason}")
        async with self._applying:  # an `apply` in progress may begin pipelines
            await self._pipelines.end()
            self._fail_requests()
            await self._pipelines.disconnect(reason)

    async def apply(self, topology: Topology) -> None:
        """Add and remove pipelines; requests of removed pipelines are rewound and continue on the others.

        Without pipelines, requests wait for later ones; a closed topology refuses new requests. Raises
        ConfigurationError and RequestsUnfinishedError, see PipelineSet.check.
        """
        async with self._applying:
            if self._state is EngineState.STOPPED:
                raise ConfigurationError("topology: the engine has stopped")
            self._pipelines.check(topology, len(self._requests))
            self._losses.keep(await self._pipelines.replace(topology))
            if topology.pipelines:
                self._patience.wake()
                if self._state is EngineState.PAUSED:
                    self._enter(EngineState.RECOVERING if self._pipelines.formed else EngineState.LOADING, NO_PIPELINES)
            elif self._state is not EngineState.FAILED:
                self.demand.sleep()
                self._patience.rest()
                self._enter(EngineState.RECOVERING, NO_PIPELINES)
                if topology.closed:
                    self._enter(EngineState.PAUSED, topology.closed)
                    self._fail_requests()
            self._pipelines.begin(self.config)  # `reconfigure` may have changed it during the wait
            self._refuse_misfits()  # publishes the change, too, if pipelines were only removed

    def reconfigure(self, config: EngineConfig) -> None:
        """Apply changed limits, policies and timeouts: to the next selection, and to waits that are under way."""
        recovery_timeout, self.config = self.config.recovery_timeout, config
        self.scheduler.config = config.for_scheduler(self._pipelines.topology)
        self.scheduler.set_admission(LEDGERS[config.admission])
        self.scheduler.set_order(POLICIES[config.scheduling_policy])
        self._admission.reconfigure(config)
        self._pipelines.reconfigure(config)
        if config.recovery_timeout != recovery_timeout:
            self._patience.set_seconds(config.recovery_timeout)
            self._refuse_misfits_now_and_later()
        self._dispatch()

    def submit(self, submission: Submission) -> Request:
        """Add a request to the pool, where it waits until the engine serves; return it.

        Raises QueueFullError, EngineUnavailableError, or RequestError for a request that can never fit or has a value
        out of the protocol's range.
        """
        refusal = self._pipelines.refusal(submission)
        gives_up = self._state is EngineState.RECOVERING and self._patience.is_over
        if refusal or gives_up or self._state in (EngineState.FAILED, EngineState.STOPPED):
            raise EngineUnavailableError(refusal or self._failure)
        check_priority(submission, self.config.scheduling_policy)
        self.adapters.check_new(submission.adapter)
        request = self._requests.accept(submission)
        self._dispatch()
        return request

    def cancel(self, request_id: str) -> None:
        """Cancel a request; do nothing if the request has ended."""
        if self._requests.cancel(request_id):
            self._dispatch()

    # -- the life of pipelines (PipelineListener) ----------------------------------------------------

    def on_change(self) -> None:
        """Publish a new snapshot."""
        self._patience.note_requests(self.demand.note(self._state is EngineState.SERVING))
        self.snapshot = EngineSnapshot(
            self._state,
            self._failure,
            self._pipelines.topology,
            self._pipelines.reports,
            self._pipelines.facts.vocabulary_size,
            self._pipelines.facts.max_model_len,
            self._pipelines.most_slots,
            kv_usage(self.scheduler.ledgers),
            self.scheduler.num_running,
            self.pool.num_interactive,
            self._num_iterations,
            self._progressed_at,
            self._pipelines.formed,
            self._pipelines.loaded_bytes if self._state is EngineState.LOADING else LoadedBytes(),
            stall_bound(self.scheduler, self._pipelines.stall_seconds, self.config.recovery_timeout),
            self._patience.recovery,
            self._admission.seconds,
            sum(ledger.num_blocks for ledger in self.scheduler.ledgers),
            self.demand.idle_since,
            self.demand.has_backlog,
            self.adapters.settle(),
            self._pipelines.weights,
        )

    def on_serving(self, supervisor: PipelineSupervisor) -> None:
        """Add the pipeline to the scheduler, and enter the state serving if the start is complete."""
        self._progressed_at = time.monotonic()
        self._losses.forget(supervisor.id)
        self.scheduler.add_pipeline(supervisor.id, self.config.new_ledger(supervisor.workers.num_blocks))
        assert self._started is not None
        # The start report covers the first pipelines.
        self._pipelines.add_serving(supervisor, logging.INFO if self._started.done() else logging.DEBUG)
        complete = self._pipelines.all_serve or self._started.done() or self.config.restarted
        over = self._state in (EngineState.FAILED, EngineState.STOPPED)
        if over or not (complete or self.config.worker_owner is WorkerOwner.CLUSTER):
            self.on_change()
            return
        self._requests.fail_begun(self._pipelines.take_facts(supervisor))
        self._patience.end()
        self._enter(EngineState.SERVING)
        if not self._started.done():
            self._started.set_result(None)
        self._refuse_misfits()

    def on_result(self, supervisor: PipelineSupervisor, batch: Batch, result: pb.IterationResult) -> None:
        """Commit the result, send the next iterations, then deliver the tokens."""
        self._num_iterations += 1
        self._progressed_at = time.monotonic()
        outputs = self._requests.commit(batch, result)
        self._masks.advance(supervisor)
        self._dispatch()
        if outputs:
            self._deliver(outputs)

    def on_lost(self, supervisor: PipelineSupervisor, reason: str) -> None:
        """Remove the pipeline from the scheduler; its requests return to the pool."""
        self._pipelines.remove_serving(supervisor)
        self._masks.forget(supervisor.id)
        self._losses.note(supervisor.id, self.scheduler.computing(supervisor.id))
        self._admission.expected_wait.note_lost(supervisor.id)
        self.scheduler.remove_pipeline(supervisor.id)
        if self._pipelines.serving:
            # The lost pipeline may have been the largest: requests that need it wait as long as it is expected back.
            self._refuse_misfits()
        elif self._state is EngineState.SERVING and self._pipelines.topology.pipelines:
            failure = f"pipeline {supervisor.id} is lost: {reason}"
            if self.config.worker_owner is WorkerOwner.ENGINE and supervisor.spec in self._pipelines.topology.pipelines:
                self._enter(EngineState.FAILED, failure)
            else:
                self._pipelines.forget_progress()
                self._patience.begin()
                self._enter(EngineState.RECOVERING, failure)
        self._dispatch()

    def on_failure(self, supervisor: PipelineSupervisor, error: BaseException) -> None:
        """Fail the request that is the cause; fail `start` or the engine if no pipeline can recover."""
        assert self._started is not None
        if self._losses.settle(supervisor.id, error):
            supervisor.note_culprit()
        expected = isinstance(error, ConfigurationError | WorkerLostError)
        if expected and supervisor.recovers:
            self._refuse_misfits_now_and_later()  # the time for its return begins here, not with the loss
            return
        self._refuse_misfits()
        if not self._started.done():
            if not (expected and supervisor.has_served and self._pipelines.may_serve):
                self._started.set_exception(error)
        elif not expected:
            logger.error("engine failed: internal error in the supervisor of %s", supervisor.id, exc_info=error)
            self._fail(f"internal error: {error!r}")
        elif self._state is not EngineState.STOPPED and supervisor.has_served and not self._pipelines.may_serve:
            self._fail(f"pipeline {supervisor.id} is lost: {error}")

    # -- inside --------------------------------------------------------------------------------------

    def _dispatch(self) -> None:
        """Send iterations until no request can be selected."""
        if self._state is EngineState.SERVING:
            self._dispatcher.dispatch()
        self.on_change()

    def _refuse_misfits_now_and_later(self) -> None:
        """Fail requests that no pipeline can finish, now and when lost pipelines are no longer expected back."""
        self._refuse_misfits()
        asyncio.get_running_loop().call_later(self.config.recovery_timeout + 1, self._refuse_misfits)

    def _refuse_misfits(self) -> None:
        """Fail requests that no pipeline can finish; lines of batches may have waited behind them."""
        self._requests.refuse_misfits()
        self._dispatch()

    def _fail(self, reason: str) -> None:
        self._enter(EngineState.FAILED, reason)
        self._fail_requests()
        self.failed.set()

    def _fail_requests(self) -> None:
        """Fail all requests with the engine's failure as the error."""
        self._requests.fail_all(self._failure)
        self.on_change()

    def _enter(self, state: EngineState, failure: str = "") -> None:
        if self._state is not EngineState.STOPPED:
            self._state, self._failure = state, failure
        self.on_change()
