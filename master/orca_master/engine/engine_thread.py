"""`EngineThread`: runs the engine master on its own thread and event loop; called from the creating event loop.

The tokens of an iteration cross the threads in one wake-up. This class records the request metrics, because all
requests pass through it, from the endpoint on the same loop and from API processes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

from orca_contract.state import EngineState
from orca_contract.topology import Topology

from orca_master.engine.config import EngineConfig
from orca_master.engine.constrained import constrained
from orca_master.engine.engine_client import EngineClient, EngineStatus
from orca_master.engine.engine_master import EngineMaster
from orca_master.engine.messages import EngineObserver, Output, RequestMetrics, Submission
from orca_master.engine.progress import Progress
from orca_master.engine.request_stream import RequestStream, RequestTraces
from orca_master.scheduling.request import Request
from orca_master.text.grammar_compiler import GrammarCompiler
from orca_master.threads import start_thread

Result = TypeVar("Result")

logger = logging.getLogger(__name__)

ALIVE_SECONDS = 5.0
STOP_SECONDS = 30.0
"""A healthy engine stops within a few seconds: its calls to workers have deadlines (deadlines.SHUTDOWN_SECONDS)."""
JOIN_SECONDS = 5.0


class EngineThread(EngineClient):
    """Engine master on a thread, created and used on a running loop.

    `draining`: True from `begin_drain` on; endpoints refuse requests.
    """

    def __init__(
        self,
        topology: Topology,
        config: EngineConfig,
        observer: EngineObserver,
        metrics: RequestMetrics,
        traces: RequestTraces | None = None,
    ) -> None:
        self.engine = EngineMaster(topology, config, self._deliver, observer)
        self.config = config
        self.draining = False
        self._metrics = metrics
        self._traces = traces
        self.grammars = GrammarCompiler(Path(topology.model.path), metrics.on_grammar)
        self._own_loop = asyncio.get_running_loop()
        self._engine_loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="engine-master", daemon=True)
        self._streams: dict[str, RequestStream] = {}
        self._num_unfinished = 0
        self._busy_since = 0.0
        """Arrival of the first unfinished request, in seconds of the monotonic clock."""

    @property
    def status(self) -> EngineStatus:
        """See EngineClient."""
        engine = self.engine.snapshot
        progress = Progress(
            engine.num_iterations,
            self._num_unfinished,
            engine.num_running,
            engine.num_waiting,
            max(engine.progressed_at, self._busy_since),
            max(engine.stall_seconds, self.config.stall_timeout or 0.0),
        )
        return EngineStatus(
            engine.state,
            engine.failure,
            self.draining,
            engine.vocabulary_size,
            engine.max_model_len,
            engine.num_slots or (engine.formed.num_slots if engine.formed else 0),
            progress,
            self.config.max_queued_requests,
            self.config.max_queued_tokens,
            engine.recovery,
            engine.expected_wait,
            self.config.max_expected_wait if self.config.scheduling_policy == "fcfs" else math.inf,
            self.config.drain_timeout,
            engine.adapters,
            engine.formed is not None and engine.formed.embeds_only,
        )

    @property
    def idle(self) -> bool:
        """True if no request is unreleased."""
        return not self._streams

    @property
    def idle_seconds(self) -> float:
        """Seconds for which the engine has served without an accepted request; 0 while one is unfinished.

        A pipeline that begins to serve begins them anew: loading is not idleness. Refused requests count nothing.
        """
        engine = self.engine.snapshot
        if engine.state is not EngineState.SERVING:
            return 0.0
        return max(0.0, time.monotonic() - max(engine.idle_since, engine.progressed_at))

    async def wait_for_request(self, seconds: float) -> None:
        """Return as soon as an accepted request is unfinished, after `seconds` at the latest."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.on_engine(self.engine.demand.exists.wait)

    async def start(self) -> None:
        """Start the thread and return when the engine serves; raise what `EngineMaster.start` raises."""
        start_thread(self._thread)
        # Beside the loading of the weights, because it holds the interpreter lock.
        await asyncio.gather(self.on_engine(self.engine.start), self.grammars.prepare())

    async def failure(self) -> str:
        """Wait until the engine has failed; return the reason."""
        await self.on_engine(self.engine.failed.wait)
        return self.engine.snapshot.failure

    async def stop(self, reason: str) -> None:
        """Stop engine, workers and thread; abandon the thread after STOP_SECONDS. Do nothing before `start`."""
        if self._thread.ident is None:
            return
        try:
            await asyncio.wait_for(self.on_engine(lambda: self.engine.stop(reason)), STOP_SECONDS)
        except TimeoutError:
            logger.error("the engine did not stop within %.0f s: its thread is abandoned", STOP_SECONDS)
        await self.grammars.close()
        self._engine_loop.call_soon_threadsafe(self._engine_loop.stop)
        self._thread.join(timeout=JOIN_SECONDS)
        if self._traces is not None:
            await self._traces.close()

    async def apply(self, topology: Topology) -> None:
        """See EngineMaster.apply."""
        await self.on_engine(lambda: self.engine.apply(topology))

    async def reconfigure(self, config: EngineConfig) -> None:
        """See EngineMaster.reconfigure."""
        self.config = config
        self._engine_loop.call_soon_threadsafe(self.engine.reconfigure, config)

    def on_engine(self, call: Callable[[], Coroutine[Any, Any, Result]]) -> Awaitable[Result]:
        """Run the coroutine of `call` on the engine's loop."""
        return asyncio.wrap_future(asyncio.run_coroutine_threadsafe(call(), self._engine_loop))

    def begin_drain(self) -> None:
        """Refuse new requests, and let running ones finish on their pipelines, even if workers are shutting down."""
        self.draining = True
        self._engine_loop.call_soon_threadsafe(self.engine.begin_drain)

    async def alive(self) -> bool:
        """Return True if the engine's loop responds within ALIVE_SECONDS, and before `start`."""
        if self._thread.ident is None:
            return True
        if not self._thread.is_alive():
            return False
        try:
            await asyncio.wait_for(self.on_engine(lambda: asyncio.sleep(0)), ALIVE_SECONDS)
        except TimeoutError:
            return False
        return True

    def submit(self, submission: Submission, receive: Callable[[Output], object]) -> Awaitable[None]:
        """See EngineClient."""
        stream = RequestStream.of(submission, receive)
        self._streams[submission.request_id] = stream
        if self._traces is not None:
            self._traces.begin(stream)
        if submission.grammar is not None or submission.thinking_budget is not None:
            stream.submitting = self._own_loop.create_task(self._submit_constrained(submission))
            return stream.submitting
        return self._pass_on(submission, stream)

    def release(self, request_id: str, ended_as: str | None) -> None:
        """See EngineClient."""
        stream = self._streams.pop(request_id)
        if stream.submitting is not None:  # its grammar leaves the queue
            self._own_loop.call_soon(stream.submitting.cancel)  # after the task has begun: it returns then
        if not stream.ended:
            self._num_unfinished -= stream.counted
            self._note_end(stream, ended_as, "", time.monotonic())
        self._engine_loop.call_soon_threadsafe(self.engine.cancel, request_id)

    def note_response(self, route: str, status: int) -> None:
        """See EngineClient."""
        self._metrics.on_response(route, status)

    async def metrics(self) -> bytes:
        """See EngineClient."""
        return self._metrics.render()

    def _run(self) -> None:
        self._engine_loop.run_forever()
        self._engine_loop.run_until_complete(_cancel_others())

    async def _submit_constrained(self, submission: Submission) -> None:
        """Submit a request when its grammar is compiled; return if the caller releases the request meanwhile."""
        vocabulary_size = self.engine.snapshot.vocabulary_size
        try:
            limited = await constrained(submission, self.grammars, vocabulary_size)
            if (stream := self._streams.get(submission.request_id)) is not None:
                await self._pass_on(limited, stream)
        except asyncio.CancelledError:
            if submission.request_id in self._streams:
                raise

    def _pass_on(self, submission: Submission, stream: RequestStream) -> asyncio.Future[None]:
        """Submit a request to the engine's loop and count it; return the acceptance."""
        if not self._num_unfinished:
            self._busy_since = time.monotonic()
        self._num_unfinished += 1
        stream.counted = True
        accepted: asyncio.Future[None] = self._own_loop.create_future()
        self._engine_loop.call_soon_threadsafe(self._submit, submission, stream, accepted)
        return accepted

    def _submit(self, submission: Submission, stream: RequestStream, accepted: asyncio.Future[None]) -> None:
        """Submit on the engine's loop. A callback like that of `release`: a task would begin after a later release."""
        if accepted.cancelled():
            return
        result: Request | Exception
        try:
            result = self.engine.submit(submission)
        except Exception as error:  # raised to the caller of `submit`
            result = error
        self._own_loop.call_soon_threadsafe(_settle, stream, accepted, result)

    def _deliver(self, outputs: list[Output]) -> None:
        self._own_loop.call_soon_threadsafe(self._distribute, outputs)

    def _distribute(self, outputs: list[Output]) -> None:
        now = time.monotonic()
        for output in outputs:
            if (stream := self._streams.get(output.request_id)) is None:
                continue
            if output.token is not None:
                stream.note_token(self._metrics, now)
            if output.finish_reason is not None:
                stream.ended = True
                self._num_unfinished -= 1
                self._note_end(stream, output.finish_reason.value, output.error or "", now)
            stream.receive(output)

    def _note_end(self, stream: RequestStream, reason: str | None, error: str, now: float) -> None:
        """Record the end of a request in metrics and traces. `reason`, `error`: see RequestTraces."""
        if reason is not None:
            stream.note_end(self._metrics, reason, now)
        if self._traces is not None:
            self._traces.end(stream, reason, error, now)


def _settle(stream: RequestStream, accepted: asyncio.Future[None], result: Request | Exception) -> None:
    if isinstance(result, Request):
        stream.request = result
    if accepted.cancelled():
        return
    if isinstance(result, Exception):
        accepted.set_exception(result)
    else:
        accepted.set_result(None)


async def _cancel_others() -> None:
    """Cancel the loop's other tasks, also those of calls that were abandoned while the loop was stuck."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
