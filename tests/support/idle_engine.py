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


class Idle(EngineClient):
    """Accepts requests and never generates."""

    def __init__(self, adapters: tuple[ServedAdapter, ...] = ()) -> None:
        self.adapters = adapters
        self.submitted: list[Submission] = []

    @property
    def status(self) -> EngineStatus:
        status = EngineStatus(EngineState.STOPPED, "", False, 100, 64, 64, Progress(), 10, 1000, Recovery())
        return replace(status, adapters=self.adapters)

    def submit(self, submission: Submission, receive: Callable[[Output], object]) -> Awaitable[None]:
        self.submitted.append(submission)
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        answer.set_result(None)
        return answer

    def release(self, request_id: str, ended_as: str | None) -> None:
        pass

    async def metrics(self) -> bytes:
        return b""
