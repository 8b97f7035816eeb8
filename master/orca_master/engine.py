"""`EngineMaster`: drives Algorithm 1 over its pipelines, on one event loop.

Per pipeline: select → dispatch → send until nothing can be selected or n_workers iterations are in
flight; a returned result is committed, its tokens are delivered, and the selection starts again. The
scheduler is only touched from this loop, so nothing is locked.

A lost worker ends its pipeline: its requests are rewound, and continue on another pipeline if one
serves; without one they end with an error. (Re-forming a pipeline is not built yet.)
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from orca_protos import engine_pb2 as pb

from orca_master.engine_config import EngineConfig
from orca_master.errors import EngineUnavailableError, RequestError
from orca_master.kv_ledger import BLOCK_SIZE, LEDGERS, KvLedger, blocks_for
from orca_master.pipeline import Pipeline
from orca_master.pool import RequestPool
from orca_master.request import FinishReason, Request, SamplingParameters
from orca_master.scheduler import Batch, Scheduler, SchedulerConfig
from orca_master.topology import Topology
from orca_master.workers import WorkerLostError

logger = logging.getLogger(__name__)


class EngineState(enum.Enum):
    """LOADING → SERVING → FAILED (no pipeline left) or STOPPED."""

    LOADING = "loading"
    SERVING = "serving"
    FAILED = "failed"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class Submission:
    """A request as the endpoint hands it over; the engine gives it its arrival."""

    request_id: str
    prompt: tuple[int, ...]
    max_gen_tokens: int
    sampling: SamplingParameters
    stop_token_ids: frozenset[int]


@dataclass(frozen=True, slots=True)
class Output:
    """News of one request: the token that an iteration sampled for it, or its end."""

    request_id: str
    token: int | None
    finish_reason: FinishReason | None
    error: str | None = None
    logprobs: pb.Logprobs | None = None


class EngineObserver(Protocol):
    """What metrics and tests may watch; called on the engine's loop, must not block."""

    def on_dispatch(self, sequence: int, batch: Batch) -> None:
        """An iteration was sent."""

    def on_preemption(self, count: int) -> None:
        """Requests were rewound to make room."""

    def on_timing(self, pipeline: str, timing: pb.StageTiming) -> None:
        """A partition computed an iteration."""


@dataclass(slots=True)
class _Serving:
    """A serving pipeline with its iterations in flight, oldest first."""

    pipeline: Pipeline
    ledger: KvLedger
    in_flight: deque[tuple[int, Batch]] = field(default_factory=deque)
    deadline: asyncio.TimerHandle | None = None
    stalled: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


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
        self.facts = pb.ModelFacts()
        self._topology = topology
        self._config = config
        self._deliver = deliver
        self._observer = observer
        self._requests: dict[str, Request] = {}
        self._num_arrived = 0
        self.pool = RequestPool(config.max_queued_requests, config.max_queued_tokens)
        self.scheduler = Scheduler(
            SchedulerConfig(
                config.max_batch_size, topology.pipeline_parallel_size, config.token_budget, config.balanced
            ),
            self.pool,
        )
        self._pipelines: list[Pipeline] = []
        self._serving: dict[str, _Serving] = {}
        self._tasks: list[asyncio.Task[None]] = []

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
        """Forms every pipeline and serves; raises ConfigurationError or WorkerLostError."""
        self._pipelines = [Pipeline(spec, self._topology, self._config) for spec in self._topology.pipelines]
        try:
            await asyncio.gather(*(pipeline.form() for pipeline in self._pipelines))
        except Exception:
            self.state, self.failure = EngineState.FAILED, "the engine did not start"
            raise
        for pipeline in self._pipelines:
            ledger = LEDGERS[self._config.admission](pipeline.num_blocks)
            self.scheduler.add_pipeline(pipeline.id, ledger)
            self._serving[pipeline.id] = serving = _Serving(pipeline, ledger)
            self._tasks.append(asyncio.create_task(self._serve(serving)))
        self.facts = self._pipelines[0].facts
        self.state = EngineState.SERVING
        self._refuse_misfits()
        self._dispatch()

    async def stop(self, reason: str) -> None:
        """Ends what runs with an error and shuts the workers down."""
        self.state = EngineState.STOPPED
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._fail_requests(f"the server stops: {reason}")
        await asyncio.gather(*(pipeline.shutdown(reason) for pipeline in self._pipelines))

    def submit(self, submission: Submission) -> None:
        """Takes a request into the pool.

        Before `start` has returned it waits there. Raises QueueFullError, EngineUnavailableError, or
        RequestError for a request that can never fit.
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
        rounded = blocks_for(request.max_tokens) * BLOCK_SIZE
        numbers = f"{len(request.prompt)} prompt tokens + {request.max_gen_tokens} max_tokens"
        if request.max_tokens > self.facts.max_model_len:
            raise RequestError(
                f"{numbers} = {request.max_tokens} exceed the model's context of {self.facts.max_model_len} tokens",
                "max_tokens",
            )
        if rounded > self.num_slots:
            raise RequestError(
                f"{numbers} need {rounded} K/V slots (rounded to blocks of {BLOCK_SIZE}), "
                f"this server has {self.num_slots}: lower max_tokens or raise --kv-slots",
                "max_tokens",
            )

    def _refuse_misfits(self) -> None:
        """Ends waiting requests that exceed limits which were not known, or not in force, when they came."""
        for request in list(self.pool):
            try:
                self._check_fits(request)
            except RequestError as error:
                self.scheduler.cancel(request, FinishReason.ERROR)
                del self._requests[request.request_id]
                self._deliver([Output(request.request_id, None, FinishReason.ERROR, str(error))])

    async def _serve(self, serving: _Serving) -> None:
        """Runs one pipeline until it is lost."""
        pipeline = serving.pipeline
        messages = asyncio.create_task(
            pipeline.serve(
                lambda result: self._commit(serving, result),
                lambda timing: self._observer.on_timing(pipeline.id, timing),
            )
        )
        reason = f"an iteration did not return within {self._config.stall_timeout:.0f} s"
        try:
            await asyncio.wait({messages, serving.stalled}, return_when=asyncio.FIRST_COMPLETED)
            if messages.done():
                reason = str(messages.exception())
        finally:
            if serving.deadline is not None:
                serving.deadline.cancel()
            messages.cancel()
            await asyncio.gather(messages, return_exceptions=True)
        await self._lose(pipeline, reason)

    def _dispatch(self) -> None:
        """Sends what can be selected, the pipeline with the fewest iterations in flight first."""
        while self.state is EngineState.SERVING:
            for serving in sorted(self._serving.values(), key=lambda serving: len(serving.in_flight)):
                proposal = self.scheduler.select(serving.pipeline.id)
                if proposal:
                    break
            else:
                return
            batch = self.scheduler.dispatch(serving.pipeline.id, proposal)
            sequence = serving.pipeline.send(batch)
            serving.in_flight.append((sequence, batch))
            if serving.deadline is None:
                self._arm(serving)
            self._observer.on_dispatch(sequence, batch)
            if proposal.preempted:
                self._observer.on_preemption(len(proposal.preempted))

    def _commit(self, serving: _Serving, result: pb.IterationResult) -> None:
        sequence, batch = serving.in_flight.popleft()
        if result.sequence != sequence:
            raise WorkerLostError(f"result {result.sequence} came where {sequence} was due")
        outputs = []
        logprobs = {found.index: found for found in result.logprobs}
        for index, request in self.scheduler.commit(batch, list(result.token)):
            outputs.append(
                Output(request.request_id, request.generated[-1], request.finish_reason, logprobs=logprobs.get(index))
            )
            if request.finish_reason is not None:
                del self._requests[request.request_id]
        self._arm(serving)
        self._dispatch()
        if outputs:
            self._deliver(outputs)

    def _arm(self, serving: _Serving) -> None:
        """Sets the deadline of the oldest iteration in flight."""
        if serving.deadline is not None:
            serving.deadline.cancel()
            serving.deadline = None
        if serving.in_flight:
            loop = asyncio.get_running_loop()
            serving.deadline = loop.call_later(self._config.stall_timeout, _resolve, serving.stalled)

    async def _lose(self, pipeline: Pipeline, reason: str) -> None:
        logger.error("pipeline %s is lost: %s", pipeline.id, reason)
        del self._serving[pipeline.id]
        self.scheduler.remove_pipeline(pipeline.id)
        if not self._serving:
            self.state, self.failure = EngineState.FAILED, f"pipeline {pipeline.id} is lost: {reason}"
        else:
            self._refuse_misfits()  # the lost one may have been the largest
        self._dispatch()
        reason = await pipeline.last_words() or reason
        if not self._serving:
            self.failure = f"pipeline {pipeline.id} is lost: {reason}"
            self._fail_requests(self.failure)
        await pipeline.shutdown(reason)

    def _fail_requests(self, reason: str) -> None:
        outputs = []
        for request in self._requests.values():
            self.scheduler.cancel(request, FinishReason.ERROR)
            outputs.append(Output(request.request_id, None, FinishReason.ERROR, reason))
        self._requests.clear()
        self._deliver(outputs)


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
