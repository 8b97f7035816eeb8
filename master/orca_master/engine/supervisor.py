"""`PipelineSupervisor`: the life cycle of one pipeline of the topology.

| state | meaning | next states |
|---|---|---|
| Connecting | Describe is called on all workers | Loading, Recovering |
| Loading | the workers load their weights; entered again at each progress | Loading, Forming, Recovering |
| Forming | communicators, K/V blocks and streams are created | Serving, Recovering |
| Serving | iterations are sent and results received | Recovering |
| Recovering | the cause is determined; RETRY_SECONDS before a second attempt | Connecting |

The supervisor ends in any state when the pipeline leaves the topology or the engine stops. It also ends at a failure
after which the pipeline does not recover (`recovers`): if nothing restarts the workers, or if the parent process of
`orca serve` restarts them and the pipeline never served or has no attempt left (attempts.py).

The state Serving ends when an iteration does not return in time (iteration_watch.py), when a worker reports a fault,
after an unexpected exception, and when the listener gives the pipeline up, for example because a worker is shutting
down (departures.py). The listener must then rewind the requests: in-flight results are discarded.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from orca_contract.state import PipelinePhase, PipelineReport
from orca_contract.topology import PipelineSpec, Topology
from orca_protos import deadlines
from orca_protos import engine_pb2 as pb
from orca_protos.wire import HIGHEST_EPOCH

from orca_master.engine.attempts import Attempts
from orca_master.engine.config import EngineConfig, WorkerOwner
from orca_master.engine.failure_log import FailureLog
from orca_master.engine.faults import WorkerLostError, closest, departing, stalled
from orca_master.engine.iteration_watch import IterationWatch
from orca_master.engine.listener import PipelineListener
from orca_master.engine.phases import DEFAULT_REASONS, TRANSITIONS
from orca_master.engine.workers import MakeWorkers, PipelineWorkers
from orca_master.errors import ConfigurationError
from orca_master.scheduling.batch import Batch

logger = logging.getLogger(__name__)

RETRY_SECONDS = 1.0
NO_PROGRESS = (False, -1, 0)
"""Progress of a formation: all workers loaded, number of loaded workers (-1: not connected), loaded bytes."""


class PipelineSupervisor:
    """Forms the pipeline of `spec`, sends iterations to its workers, and forms a lost pipeline again.

    `check` is called when the workers have loaded, `complete` is the last step of a formation. Both raise what `form`
    raises.
    """

    def __init__(
        self,
        spec: PipelineSpec,
        topology: Topology,
        config: EngineConfig,
        listener: PipelineListener,
        make_workers: MakeWorkers,
        check: Callable[[PipelineWorkers], None],
        complete: Callable[[PipelineWorkers], Awaitable[None]],
    ) -> None:
        self.spec = spec
        self.id = spec.id
        self.state = PipelinePhase.CONNECTING
        self.workers = make_workers(spec, topology, config)
        self._topology = topology
        self._config = config
        self._make_workers = make_workers
        self._check, self._complete = check, complete
        self._listener = listener
        self.has_served = config.restarted
        """True if a failure is the loss of workers that have served."""
        self._attempts = Attempts()
        self._num_blocks = 0
        """K/V blocks of the last formation."""
        self.furthest = NO_PROGRESS
        """Furthest progress since the pipeline last served, or since the engine began to wait for a pipeline."""
        self._failures = FailureLog()
        self.report = self._make_report()
        """The published state: Recovering from a failure until the pipeline serves again."""
        self.departure: WorkerLostError | None = None
        """While the pipeline serves: names the first of its workers that got a signal to end."""
        self._in_flight: deque[tuple[int, Batch]] = deque()
        self.watch = IterationWatch(config.fixed_stall_timeout, lambda seconds: self.give_up(stalled(seconds)))
        self._broken: asyncio.Future[WorkerLostError] = asyncio.get_running_loop().create_future()
        """Resolves to the error that ends the state Serving."""
        self._task: asyncio.Task[None] | None = None

    @property
    def is_open(self) -> bool:
        """True if iterations can be sent."""
        return self.state is PipelinePhase.SERVING and not self._broken.done()

    @property
    def recovers(self) -> bool:
        """True if the pipeline is formed again after a failure."""
        owner = self._config.worker_owner
        if owner is WorkerOwner.PARENT:
            return self.has_served and self._attempts.left
        return owner is WorkerOwner.CLUSTER

    @property
    def expected_blocks(self) -> int:
        """K/V blocks of the pipeline while it serves, or is expected back: for `recovery_timeout` after its loss."""
        returns = self.recovers and self._failures.seconds <= self._config.recovery_timeout
        return self._num_blocks if returns or self.state is PipelinePhase.SERVING else 0

    @property
    def num_in_flight(self) -> int:
        """Number of iterations in flight."""
        return len(self._in_flight)

    @property
    def newest_batch(self) -> Batch:
        """The most recently sent batch in flight."""
        return self._in_flight[-1][1]

    def reconfigure(self, config: EngineConfig) -> None:
        """Apply changed options: the timeouts to the present formation, all others to the next."""
        self._config = config
        self.watch.set_timeout(config.fixed_stall_timeout)

    def begin(self) -> None:
        """Start forming the pipeline."""
        self._task = asyncio.create_task(self._run())
        self._task.add_done_callback(self._on_end)

    async def end(self) -> None:
        """Stop the supervision; the workers and connections remain until `disconnect`."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def disconnect(self, reason: str) -> None:
        """Close the connections to the workers; if the engine owns the workers, shut them down first."""
        owned = self._config.worker_owner is WorkerOwner.ENGINE
        await (self.workers.shutdown(reason) if owned else self.workers.close())

    def send(self, batch: Batch) -> int:
        """Send an iteration and return its sequence number. Never blocks."""
        sequence = self.workers.send(batch)
        self._in_flight.append((sequence, batch))
        if not self.watch.watches:
            self.watch.begin(batch)
        return sequence

    async def change_adapters(self, kept: Sequence[int], loaded: pb.RuntimeAdapter | None) -> str:
        """See Pipeline.change_adapters. Iterations wait for the change, so they have its time beyond their bound."""
        with self.watch.allowing(deadlines.ADAPTER_COPY_SECONDS):
            self._listener.on_change()
            return await self.workers.change_adapters(kept, loaded, self._config.longest_seconds)

    def give_up(self, error: WorkerLostError) -> None:
        """End the state Serving with `error`."""
        if not self._broken.done():
            self._broken.set_result(error)

    def note_culprit(self) -> None:
        """Note that the request that may have caused the losses has ended."""
        self._attempts.note_culprit()

    # -- messages of the workers (PipelineReceiver) --------------------------------------------------

    def on_result(self, result: pb.IterationResult) -> None:
        """Pass a result on; raise WorkerLostError for a result out of order."""
        expected, batch = self._in_flight.popleft()
        if result.sequence != expected:
            raise WorkerLostError(f"received the result of iteration {result.sequence}, expected {expected}")
        self._attempts.note_result()
        self.watch.end()
        if self._in_flight:
            self.watch.begin(self._in_flight[0][1])
        self._listener.on_result(self, batch, result)

    def on_timing(self, timing: pb.StageTiming) -> None:
        """See PipelineReceiver."""
        self._listener.on_timing(self.id, timing)

    def on_departure(self, worker: str) -> None:
        """Note the first departure and let the listener decide; the others are of no consequence."""
        if self.departure is None:
            self.departure = departing(worker)
            logger.warning("pipeline %s: %s", self.id, self.departure)
            self._listener.on_departure(self)

    # -- inside --------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            failure = await self._form_and_serve()
            self._listener.on_failure(self, failure)
            await self.disconnect(str(failure))
            if not self.recovers:
                if self.has_served:
                    logger.error("pipeline %s is given up", self.id)
                return
            epoch = self.workers.epoch
            self.workers = self._make_workers(self.spec, self._topology, self._config)
            # If all workers were restarted, only the master knows which epochs were used. After the highest the next
            # formation begins anew, as a restarted worker does (Pipeline._end_exhausted).
            self.workers.epoch = epoch if epoch < HIGHEST_EPOCH else 0
            self._publish()
            await asyncio.sleep(0.0 if self._attempts.first else RETRY_SECONDS)
            self._enter(PipelinePhase.CONNECTING)

    async def _form_and_serve(self) -> ConfigurationError | WorkerLostError:
        """Form the pipeline and serve; return the cause of the failure."""
        try:
            await self.workers.form(self._enter, self._num_blocks)
            await self._complete(self.workers)
        except (ConfigurationError, WorkerLostError) as error:
            self._attempts.note_failure()
            if (self.has_served or self.recovers) and self._failures.is_news(error):  # else EngineMaster.start raises
                logger.warning("pipeline %s was not formed: %s", self.id, error)
            self._failures.note(error, DEFAULT_REASONS[self.state])
            self._enter(PipelinePhase.RECOVERING)
            return error
        self._failures.note_recovery()
        self.has_served, self._num_blocks = True, self.workers.num_blocks
        self.watch.note_formation(self.workers.warmup_seconds * len(self.spec.workers))
        self._attempts.note_serving()
        self.furthest = NO_PROGRESS
        self._enter(PipelinePhase.SERVING)
        lost = await self._serve()
        self._attempts.note_failure()
        logger.error("pipeline %s is lost: %s", self.id, lost)
        self._failures.note(lost, DEFAULT_REASONS[PipelinePhase.SERVING])
        self._publish()
        return lost

    async def _serve(self) -> WorkerLostError:
        """Transfer iterations and results until the pipeline is lost; return the cause."""
        self._broken = asyncio.get_running_loop().create_future()
        own: list[WorkerLostError] = []
        self._listener.on_serving(self)
        messages = asyncio.create_task(self.workers.serve(self))
        try:
            ends: set[asyncio.Future[Any]] = {messages, self._broken}
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if not messages.done():
                own = [self._broken.result()]
            elif (error := messages.exception()) is not None:
                logger.error("pipeline %s failed on a message", self.id, exc_info=error)
                internal = WorkerLostError(f"internal error: {error!r}")
                own = [error if isinstance(error, WorkerLostError) else internal]
        except asyncio.CancelledError:
            own = [WorkerLostError("the pipeline was removed from the topology, or the engine stops")]
            raise
        finally:
            messages.cancel()
            try:
                await asyncio.gather(messages, return_exceptions=True)
            finally:  # also if this task is cancelled during the gather
                self.watch.stop()
                self.departure = None
                self._in_flight.clear()
                self._enter(PipelinePhase.RECOVERING)
                known = [*own, *self.workers.reported] or [WorkerLostError("the streams of its workers ended")]
                self._listener.on_lost(self, str(closest(known)))
        if messages.cancelled() and not self.workers.reported:
            return closest(own)  # nothing broke: no report of a cause is under way
        # The requests can continue on other pipelines now, while the cause is still awaited here.
        return closest([*own, *await self.workers.reported_until_conclusive()])

    def _enter(self, state: PipelinePhase) -> None:
        assert state in TRANSITIONS[self.state], f"{self.state} -> {state}"
        if state is PipelinePhase.FORMING:  # all workers have loaded
            self._check(self.workers)
        self.state = state
        self._publish()
        reached = (state is PipelinePhase.FORMING, self.workers.num_loaded, self.workers.loaded_bytes.done)
        if state in (PipelinePhase.LOADING, PipelinePhase.FORMING) and reached > self.furthest:
            self.furthest = reached
            self._listener.on_progress()

    def _publish(self) -> None:
        self.report = self._make_report()
        self._listener.on_change()

    def _make_report(self) -> PipelineReport:
        recovers = self.state is not PipelinePhase.SERVING and self._failures.last is not None
        return PipelineReport(
            id=self.id,
            phase=PipelinePhase.RECOVERING if recovers else self.state,
            epoch=self.workers.epoch,
            loaded_workers=self.workers.num_loaded,
            last_failure=self._failures.last,
        )

    def _on_end(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._listener.on_failure(self, error)
