"""`EngineThread`: the engine master on a thread and event loop of its own, called from the endpoint's loop.

Small arrangement of docs/architecture.md, section 3: one process, two threads. The endpoint sees only
`generate`, and one wake-up per iteration carries all its tokens across.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import Future

from orca_master.engine import EngineMaster
from orca_master.engine_config import EngineConfig
from orca_master.engine_types import EngineObserver, Output, Submission
from orca_master.errors import EngineUnavailableError
from orca_master.topology import Topology

ALIVE_SECONDS = 5.0


class EngineThread:
    """Make and use it on the endpoint's running loop; `start` begins the thread."""

    def __init__(self, topology: Topology, config: EngineConfig, observer: EngineObserver) -> None:
        self.engine = EngineMaster(topology, config, self._deliver, observer)
        self.config = config
        self._endpoint_loop = asyncio.get_running_loop()
        self._engine_loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._engine_loop.run_forever, name="engine-master", daemon=True)
        self._queues: dict[str, asyncio.Queue[Output]] = {}

    async def start(self) -> None:
        """Starts the thread and returns when the engine serves; raises what `EngineMaster.start` raises."""
        self._thread.start()
        await self._on_engine(self.engine.start)

    async def stop(self, reason: str) -> None:
        """Stops engine, workers and thread."""
        await self._on_engine(lambda: self.engine.stop(reason))
        self._engine_loop.call_soon_threadsafe(self._engine_loop.stop)
        self._thread.join(timeout=5.0)

    async def apply(self, topology: Topology) -> None:
        """See Membership.apply."""
        await self._on_engine(lambda: self.engine.membership.apply(topology))

    async def reconfigure(self, config: EngineConfig) -> None:
        """See EngineMaster.reconfigure."""
        self.config = config
        self._engine_loop.call_soon_threadsafe(self.engine.reconfigure, config)

    async def alive(self) -> bool:
        """Whether the engine's loop takes a turn within a bound."""
        if not self._thread.is_alive():
            return False
        turn: Future[None] = Future()
        self._engine_loop.call_soon_threadsafe(turn.set_result, None)
        try:
            await asyncio.wait_for(asyncio.wrap_future(turn), ALIVE_SECONDS)
        except TimeoutError:
            return False
        return True

    async def generate(self, submission: Submission) -> AsyncGenerator[Output, None]:
        """Submits and yields outputs up to the one with a finish reason.

        Leaving the iteration early cancels the request. Raises what `EngineMaster.submit` raises, and
        EngineUnavailableError when the engine fails under way.
        """
        queue: asyncio.Queue[Output] = asyncio.Queue()
        self._queues[submission.request_id] = queue
        try:
            await self._on_engine(lambda: self._submit(submission))
            while True:
                output = await queue.get()
                if output.error is not None:
                    raise EngineUnavailableError(output.error)
                yield output
                if output.finish_reason is not None:
                    return
        finally:
            del self._queues[submission.request_id]
            self._engine_loop.call_soon_threadsafe(self.engine.cancel, submission.request_id)

    async def _submit(self, submission: Submission) -> None:
        self.engine.submit(submission)

    async def _on_engine(self, call: Callable[[], object]) -> None:
        future: Future[None] = asyncio.run_coroutine_threadsafe(call(), self._engine_loop)  # type: ignore[arg-type]
        await asyncio.wrap_future(future)

    def _deliver(self, outputs: list[Output]) -> None:
        self._endpoint_loop.call_soon_threadsafe(self._distribute, outputs)

    def _distribute(self, outputs: list[Output]) -> None:
        for output in outputs:
            queue = self._queues.get(output.request_id)
            if queue is not None:
                queue.put_nowait(output)
