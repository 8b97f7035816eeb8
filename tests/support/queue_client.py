"""`Queue`: an engine of the endpoint that only accepts requests, whose outputs the test sends."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from typing import Any

from orca_contract.state import EngineState
from orca_master.engine.engine_client import EngineClient, EngineStatus
from orca_master.engine.messages import Output, Submission
from orca_master.engine.progress import Progress
from orca_master.engine.recovery import Recovery
from orca_master.errors import QueueFullError
from orca_master.scheduling.request import FinishReason

DEPTH, TOKENS = 256, 100_000


class Queue(EngineClient):
    """Accepts up to `room` requests; one token ends each when `finish` is called."""

    def __init__(
        self, room: int = DEPTH, waiting: int = 0, expected_wait: float = 0.0, max_expected_wait: float = math.inf
    ) -> None:
        self.room = room
        self.waits = expected_wait, max_expected_wait
        self.draining = False
        self.state, self.failure = EngineState.SERVING, ""
        self.waiting = waiting
        self.accepted: dict[str, Submission] = {}
        self.receivers: dict[str, Callable[[Output], object]] = {}
        self.released: dict[str, str | None] = {}
        self.bursts: list[int] = []
        """Submissions of each turn of the event loop."""

    @property
    def status(self) -> EngineStatus:
        progress = Progress(num_waiting=self.waiting)
        limits = 100, 64, 64, progress, DEPTH, TOKENS
        return EngineStatus(self.state, self.failure, self.draining, *limits, Recovery(), *self.waits)

    def submit(self, submission: Submission, receive: Callable[[Output], object]) -> Awaitable[None]:
        loop = asyncio.get_running_loop()
        if not self.bursts or self.bursts[-1] == 0:
            self.bursts.append(0)
            loop.call_soon(self.bursts.append, 0)
        self.bursts[-1] += 1
        answer: asyncio.Future[None] = loop.create_future()
        if len(self.accepted) == self.room:
            answer.set_exception(QueueFullError("full"))
        else:
            self.accepted[submission.request_id] = submission
            answer.set_result(None)
        self.receivers[submission.request_id] = receive
        return answer

    def release(self, request_id: str, ended_as: str | None) -> None:
        del self.receivers[request_id]
        self.released[request_id] = ended_as

    def note_response(self, route: str, status: int) -> None:
        pass

    async def metrics(self) -> bytes:
        return b""

    def finish(self, count: int, **output: Any) -> None:
        for request_id, receive in list(self.receivers.items())[:count]:
            receive(Output(request_id, **({"token": 5, "finish_reason": FinishReason.LENGTH} | output)))
