"""`RemoteEngine`: the EngineClient of an API process, connected to the master by a Unix socket (link_frames.py)."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from orca_contract.state import EngineState

from orca_master.api_processes.link_codec import decode_from_master, encode_to_master
from orca_master.api_processes.link_frames import MAX_FROM_MASTER_BYTES, max_request_bytes, open_link, receive, send
from orca_master.api_processes.link_messages import (
    Answer,
    AskMetrics,
    CountResponse,
    FromMaster,
    Hello,
    LinkError,
    Outputs,
    Release,
    ResponsesChanged,
    StopResponse,
    Submit,
    ToMaster,
)
from orca_master.api_processes.response_notices import ResponseNotices
from orca_master.engine.engine_client import EngineClient, EngineStatus
from orca_master.engine.messages import Output, Submission
from orca_master.engine.request_limits import check_fits
from orca_master.errors import EngineError, EngineUnavailableError, RequestError
from orca_master.scheduling.request import FinishReason, Request
from orca_master.scheduling.sampling_parameters import ValueOutOfRangeError

logger = logging.getLogger(__name__)

GONE = "the engine master has ended"
HELLO_SECONDS = 30.0
"""Timeout of the master's first message."""


async def connect(path: Path) -> tuple[RemoteEngine, Hello]:
    """Connect to the engine at a socket; return it and the master's Hello. Raise EngineUnavailableError."""
    try:
        async with asyncio.timeout(HELLO_SECONDS):
            reader, writer = await open_link(path)
            hello = await _receive(reader)
    except TimeoutError as error:
        raise EngineUnavailableError(f"{path}: the master did not answer within {HELLO_SECONDS:.0f} s") from error
    except OSError as error:
        raise EngineUnavailableError(f"{path}: {error.strerror or error}") from error
    except LinkError as error:
        raise EngineUnavailableError(f"{path}: {error}") from error
    if not isinstance(hello, Hello):
        raise EngineUnavailableError(GONE if hello is None else f"{path}: the first message is not Hello")
    return RemoteEngine(reader, writer, hello.status), hello


async def _receive(reader: asyncio.StreamReader) -> FromMaster | None:
    """Wait for the next message; None at the end of the stream. Raises LinkError."""
    frame = await receive(reader, lambda: MAX_FROM_MASTER_BYTES)
    return None if frame is None else decode_from_master(frame)


class RemoteEngine(EngineClient):
    """Created by `connect`; `listen` must run. After the link closes, requests are refused or end with an error."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, status: EngineStatus) -> None:
        self._reader = reader
        self._writer = writer
        self._status = status
        self._receivers: dict[str, Callable[[Output], object]] = {}
        """Receivers of the submitted unfinished requests."""
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._numbers = itertools.count()
        self.notices = ResponseNotices()
        self._gone = False

    @property
    def status(self) -> EngineStatus:
        """See EngineClient."""
        return self._status

    def submit(self, submission: Submission, receive: Callable[[Output], object]) -> Awaitable[None]:
        """See EngineClient. A request that cannot be encoded is refused here, with RequestError."""
        number = next(self._numbers)
        try:
            body = self._encode(Submit(number, submission))
        except RequestError as error:
            refused: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            refused.set_exception(error)
            return refused
        self._receivers[submission.request_id] = receive
        return self._ask(number, body)

    def release(self, request_id: str, ended_as: str | None) -> None:
        """See EngineClient. The master itself releases requests that have ended."""
        if self._receivers.pop(request_id, None) is not None:
            self._send(encode_to_master(Release(request_id, ended_as)))

    def note_response(self, route: str, status: int) -> None:
        """See EngineClient."""
        self._send(encode_to_master(CountResponse(route, status)))

    async def metrics(self) -> bytes:
        """See EngineClient."""
        text = await self.ask(AskMetrics)
        if text is None:
            raise EngineError("the master's answer contains no metrics")
        return text

    async def ask(self, message: Callable[[int], ToMaster]) -> bytes | None:
        """Send the message with a new number, and return the value of its answer or raise its error."""
        number = next(self._numbers)
        value: bytes | None = await self._ask(number, encode_to_master(message(number)))
        return value

    async def listen(self) -> None:
        """Process the master's messages until the link closes; then fail all pending answers and requests."""
        try:
            while (message := await _receive(self._reader)) is not None:
                self._handle(message)
        except LinkError as error:
            logger.error("the link to the master is closed: %s", error)
        self._writer.close()
        self._status = replace(self._status, state=EngineState.STOPPED, failure=GONE)
        self._gone = True
        for answer in self._answers.values():
            _settle(answer, None, EngineUnavailableError(GONE))
        for request_id, receiver in list(self._receivers.items()):  # a receiver may release requests
            receiver(Output(request_id, None, FinishReason.ERROR, GONE))
        self._receivers.clear()
        self.notices.close()

    def _handle(self, message: FromMaster) -> None:
        match message:
            case Outputs(outputs):
                for output in outputs:
                    receiver = self._receivers.get(output.request_id)
                    if receiver is None:  # released in the meantime
                        continue
                    if output.finish_reason is not None:
                        del self._receivers[output.request_id]
                    receiver(output)
            case Answer(number, value, error):
                answer = self._answers.pop(number, None)
                if answer is None:
                    raise LinkError(f"an answer with the unknown number {number}")
                _settle(answer, value, error)
            case EngineStatus():
                self._status = message
            case ResponsesChanged() | StopResponse():
                self.notices.handle(message)
            case Hello():
                raise LinkError("a second Hello")

    def _encode(self, message: Submit) -> bytes:
        """Return the wire form; raise RequestError if the request exceeds the model's limits or the link's."""
        submission, status = message.submission, self._status
        if status.state in (EngineState.SERVING, EngineState.RECOVERING):
            request = Request(submission.request_id, 0, submission.prompt, submission.max_gen_tokens)
            check_fits(request, status.max_model_len, status.num_slots)
        try:
            body = encode_to_master(message)
        except ValueOutOfRangeError as error:
            raise RequestError(str(error), error.field) from error
        if len(body) > (limit := max_request_bytes(status)):
            raise RequestError(f"the request has {len(body)} bytes, the limit is {limit}: shorten prompt or logit_bias")
        return body

    def _ask(self, number: int, body: bytes) -> asyncio.Future[Any]:
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if self._gone:
            answer.set_exception(EngineUnavailableError(GONE))
        else:
            self._answers[number] = answer
            self._send(body)
        return answer

    def _send(self, body: bytes) -> None:
        """Write a frame; close the link if the master does not read."""
        if self._writer.is_closing():
            return
        try:
            send(self._writer, body)
        except LinkError as error:
            logger.error("the link to the master is closed: %s", error)
            self._writer.transport.abort()


def _settle(answer: asyncio.Future[Any], value: bytes | None, error: Exception | None) -> None:
    """Set the result of `answer` unless it was cancelled."""
    if answer.done():
        return
    if error is None:
        answer.set_result(value)
    else:
        answer.set_exception(error)
