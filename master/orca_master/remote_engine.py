"""`RemoteEngine`: the engine as an API process sees it, at the other end of a Unix socket (engine_link.py)."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from orca_master.engine_client import EngineClient, EngineStatus
from orca_master.engine_link import Answer, AskMetrics, Hello, Outputs, Release, Submit, receive, send
from orca_master.engine_types import EngineState, Output, Submission
from orca_master.errors import EngineUnavailableError
from orca_master.request import FinishReason

GONE = "the engine master has ended"


async def connect(path: Path) -> tuple[RemoteEngine, Hello]:
    """Returns the engine behind a socket, and what its master wants served; raises EngineUnavailableError."""
    try:
        reader, writer = await asyncio.open_unix_connection(path)
        hello = await receive(reader)
    except OSError as error:
        raise EngineUnavailableError(f"{path}: {error.strerror or error}") from error
    if hello is None:
        raise EngineUnavailableError(GONE)
    return RemoteEngine(reader, writer, hello.status), hello


class RemoteEngine(EngineClient):
    """Made by `connect`; `listen` must run. Once the master is gone, requests are refused and end with an error."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, status: EngineStatus) -> None:
        self._reader = reader
        self._writer = writer
        self._status = status
        self._receivers: dict[str, Callable[[Output], object]] = {}
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._numbers = itertools.count()
        self._gone = False

    @property
    def status(self) -> EngineStatus:
        """See EngineClient."""
        return self._status

    def submit(self, submission: Submission, receive: Callable[[Output], object]) -> Awaitable[None]:
        """See EngineClient."""
        self._receivers[submission.request_id] = receive
        number = next(self._numbers)
        return self._ask(number, Submit(number, submission))

    def release(self, request_id: str, ended_as: str | None) -> None:
        """See EngineClient."""
        del self._receivers[request_id]
        send(self._writer, Release(request_id, ended_as))

    async def metrics(self) -> bytes:
        """See EngineClient."""
        number = next(self._numbers)
        text: bytes = await self._ask(number, AskMetrics(number))
        return text

    async def listen(self) -> None:
        """Takes what the master sends; returns when it has ended, after which nothing waits any more."""
        while (message := await receive(self._reader)) is not None:
            match message:
                case Outputs(outputs):
                    for output in outputs:
                        # One that was released meanwhile is not waited for.
                        if (receiver := self._receivers.get(output.request_id)) is not None:
                            receiver(output)
                case Answer(number, value, error):
                    _settle(self._answers.pop(number), value, error)
                case EngineStatus():
                    self._status = message
        self._status = replace(self._status, state=EngineState.STOPPED, failure=GONE)
        self._gone = True
        for answer in self._answers.values():
            _settle(answer, None, EngineUnavailableError(GONE))
        for request_id, receiver in self._receivers.items():
            receiver(Output(request_id, None, FinishReason.ERROR, GONE))

    def _ask(self, number: int, message: Submit | AskMetrics) -> asyncio.Future[Any]:
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if self._gone:
            answer.set_exception(EngineUnavailableError(GONE))
        else:
            self._answers[number] = answer
            send(self._writer, message)
        return answer


def _settle(answer: asyncio.Future[Any], value: bytes | None, error: Exception | None) -> None:
    """Gives an answer to who waits for it, if somebody still does."""
    if answer.done():
        return
    if error is None:
        answer.set_result(value)
    else:
        answer.set_exception(error)
