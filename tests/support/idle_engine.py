"""An engine for the endpoint that accepts requests and never generates."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

from orca_contract.state import EngineState
from orca_master.engine.adapter_registry import ServedAdapter
from orca_master.engine.engine_client import EngineClient, EngineStatus
from orca_master.engine.messages import Output, Submission
from orca_master.engine.progress import Progress
from orca_master.engine.recovery import Recovery
from orca_master.scheduling.request import FinishReason


class Idle(EngineClient):
    """Accepts requests and generates nothing by itself. `state`: of its status, at first as after the engine's end."""

    def __init__(self, adapters: tuple[ServedAdapter, ...] = ()) -> None:
        self.adapters = adapters
        self.submitted: list[Submission] = []
        self.state = EngineState.STOPPED
        self._receivers: dict[str, Callable[[Output], object]] = {}

    @property
    def status(self) -> EngineStatus:
        status = EngineStatus(self.state, "", False, 100, 64, 64, Progress(), 10, 1000, Recovery())
        return replace(status, adapters=self.adapters)

    def submit(self, submission: Submission, receive: Callable[[Output], object]) -> Awaitable[None]:
        self.submitted.append(submission)
        self._receivers[submission.request_id] = receive
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        answer.set_result(None)
        return answer

    def finish(self, submission: Submission) -> None:
        """Send the only token of a request."""
        self._receivers[submission.request_id](Output(submission.request_id, 5, FinishReason.LENGTH))

    def release(self, request_id: str, ended_as: str | None) -> None:
        pass

    def note_response(self, route: str, status: int) -> None:
        pass

    async def metrics(self) -> bytes:
        return b""
