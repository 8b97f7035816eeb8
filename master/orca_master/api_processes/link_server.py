"""`EngineServer`: serves the engine on a Unix socket to the API processes (messages: link_messages.py).

API processes parse network input, so the master does not trust them. A message that violates the protocol closes
the link: its requests are cancelled, and the id of the process is put into `offenders`. A request belongs to the link
that submitted it; no other link can release it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import struct
import time
from collections.abc import AsyncIterator, Coroutine
from dataclasses import replace
from pathlib import Path

from orca_master.api_processes.link_codec import ERROR_CLASSES, decode_to_master, encode_from_master
from orca_master.api_processes.link_frames import max_to_master_bytes, receive, send, serve_links
from orca_master.api_processes.link_messages import (
    Answer,
    AskMetrics,
    CountResponse,
    FromMaster,
    Hello,
    LinkError,
    LoadAdapter,
    Outputs,
    Question,
    Release,
    Submit,
    ToMaster,
    UnloadAdapter,
)
from orca_master.api_processes.response_server import ResponseLink, ResponseServer
from orca_master.endpoint.config import EndpointConfig
from orca_master.endpoint.memory_store import MemoryStore
from orca_master.engine.adapter_calls import AdapterLoader
from orca_master.engine.adapter_registry import OFF
from orca_master.engine.engine_client import EngineClient
from orca_master.engine.messages import Output, Submission
from orca_master.errors import EngineUnavailableError, RequestError
from orca_master.text.grammar_compiler import MAX_CALLERS

logger = logging.getLogger(__name__)

STATUS_SECONDS = 0.1
"""Period of the check for a changed status."""
MAX_OUTPUTS = 512
"""Maximum outputs per message."""
MAX_UNANSWERED = 1024
"""Maximum unanswered messages per link; further messages are not read meanwhile (backpressure)."""
MAX_CONSTRAINED = 2 * MAX_CALLERS
"""As MAX_UNANSWERED, of submissions with a grammar. At most MAX_CALLERS of them wait for their turn."""
_CREDENTIALS = struct.Struct("3i")
"""`struct ucred` of unix(7): process, user, group."""


class EngineServer:
    """Server for API processes; `listening` opens the socket. `model_path` and `config` are sent in Hello.

    `loader`: None without --enable-runtime-adapters.
    """

    def __init__(
        self, engine: EngineClient, model_path: Path, config: EndpointConfig, loader: AdapterLoader | None = None
    ) -> None:
        self._engine = engine
        self._loader = loader
        self._responses = ResponseServer(MemoryStore(config.stored_responses))
        self._model_path = model_path
        self._config = config
        self._announced = engine.status
        self._links: set[_Link] = set()
        self._owners: dict[str, _Link] = {}
        """Link of each unfinished request."""
        self.joined = asyncio.Semaphore(0)
        """Released once per connection."""
        self.offenders: asyncio.Queue[int] = asyncio.Queue()
        """Process ids of peers that violated the protocol."""

    @contextlib.asynccontextmanager
    async def listening(self, path: Path) -> AsyncIterator[None]:
        """Accept connections at `path` inside the `async with` block."""
        server = await serve_links(self._serve, path)
        watching = asyncio.create_task(self._watch())
        try:
            yield
        finally:
            watching.cancel()
            server.close()
            for link in self._links:
                link.writer.close()

    @property
    def is_joined(self) -> bool:
        """True while at least one process is connected."""
        return bool(self._links)

    def announce(self) -> None:
        """Send the engine's status to the processes if it has changed."""
        status = self._engine.status
        if status != self._announced:
            self._announced = status
            for link in self._links:
                link.send(status)

    async def _watch(self) -> None:
        while True:
            self.announce()
            await asyncio.sleep(STATUS_SECONDS)

    def _max_bytes(self) -> int:
        return max_to_master_bytes(self._announced)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = _Link(writer)
        self._links.add(link)
        link.send(Hello(self._model_path, self._config, self._announced))
        self.joined.release()
        try:
            while (frame := await receive(reader, self._max_bytes)) is not None:
                await self._handle(link, decode_to_master(frame))
        except LinkError as error:
            link.fail(str(error))
        finally:
            self._links.discard(link)
            link.close()
            for request_id in [request_id for request_id, owner in self._owners.items() if owner is link]:
                self._release(request_id, "abort")
            self._responses.lose(link.responses)
            if link.fault:
                logger.error("the link to API process %d is closed: %s", link.process, link.fault)
                self.offenders.put_nowait(link.process)

    async def _handle(self, link: _Link, message: ToMaster) -> None:
        if isinstance(message, Release):
            # A request that has ended in the meantime has no owner.
            if self._owners.get(message.request_id) is link:
                self._release(message.request_id, message.ended_as)
            return
        if isinstance(message, CountResponse):
            self._engine.note_response(message.route, message.status)
            return
        is_constrained = isinstance(message, Submit) and message.submission.grammar is not None
        places = link.constrained if is_constrained else link.unanswered
        await link.answer(message.number, self._value(link, message), places)

    def _value(self, link: _Link, message: Question) -> Coroutine[None, None, bytes | None]:
        """Return the value of the answer to a message."""
        match message:
            case Submit():
                return self._submit(link, message.submission)
            case AskMetrics():
                return self._engine.metrics()
            case LoadAdapter() | UnloadAdapter():
                return self._change_adapters(message)
            case _:
                return self._responses.answer(link.responses, message)

    async def _change_adapters(self, message: LoadAdapter | UnloadAdapter) -> None:
        """Load or unload an adapter; the processes learn of it before the answer."""
        if self._loader is None:
            raise RequestError(OFF)
        if isinstance(message, LoadAdapter):
            await self._loader.load(message.name, message.path, message.owner)
        else:
            await self._loader.unload(message.name, message.owner)
        self.announce()

    def _submit(self, link: _Link, submission: Submission) -> Coroutine[None, None, None]:
        """Submit a request immediately; the coroutine raises the error of a refusal."""
        request_id = submission.request_id
        if request_id in self._owners:
            return _refuse(RequestError("a request with this id exists"))
        self._owners[request_id] = link

        def deliver(output: Output) -> None:
            link.deliver(output)
            if output.finish_reason is not None and self._owners.get(request_id) is link:
                self._release(request_id, None)

        # The metrics have no negative times.
        accepted = self._engine.submit(replace(submission, arrived=min(submission.arrived, time.monotonic())), deliver)

        async def accept() -> None:
            try:
                await accepted
            except Exception:
                if self._owners.get(request_id) is link:
                    self._release(request_id, None)
                raise

        return accept()

    def _release(self, request_id: str, ended_as: str | None) -> None:
        del self._owners[request_id]
        self._engine.release(request_id, ended_as)


async def _refuse(error: Exception) -> None:
    raise error


class _Link:
    """One connection of an API process. `fault` is the reason of a failed link, "" otherwise."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self.writer = writer
        self.responses = ResponseLink(self.send)
        self.fault = ""
        peer: socket.socket = writer.get_extra_info("socket")
        credentials = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        self.process: int = _CREDENTIALS.unpack(credentials)[0]
        self._outputs: list[Output] = []
        self._answers: set[asyncio.Task[None]] = set()
        self.unanswered = asyncio.Semaphore(MAX_UNANSWERED)
        self.constrained = asyncio.Semaphore(MAX_CONSTRAINED)
        """Places of submissions with a grammar, which may wait long for its turn."""

    def send(self, message: FromMaster) -> None:
        """Write a message unless the link is closed; fail the link if the process does not read."""
        if self.writer.is_closing():
            return
        try:
            send(self.writer, encode_from_master(message))
        except LinkError as error:
            self.fail(str(error))

    def fail(self, reason: str) -> None:
        """Abort the link and drop unsent messages; its reader gets the end of the stream."""
        self.fault = self.fault or reason
        self.writer.transport.abort()

    def close(self) -> None:
        """Close the link after the written messages; drop later messages."""
        self.writer.close()

    def deliver(self, output: Output) -> None:
        """Queue an output. The outputs of an iteration arrive in one event-loop step and are sent as one message."""
        if not self._outputs:
            asyncio.get_running_loop().call_soon(self._flush)
        self._outputs.append(output)

    async def answer(self, number: int, value: Coroutine[None, None, bytes | None], places: asyncio.Semaphore) -> None:
        """Send an answer in the background once `value` is known; wait for one of the `places`, which it then has."""
        await places.acquire()
        task = asyncio.create_task(self._answer(number, value))
        self._answers.add(task)
        task.add_done_callback(self._answers.discard)
        task.add_done_callback(lambda _: places.release())

    def _flush(self) -> None:
        outputs, self._outputs = self._outputs, []
        for start in range(0, len(outputs), MAX_OUTPUTS):
            self.send(Outputs(outputs[start : start + MAX_OUTPUTS]))

    async def _answer(self, number: int, value: Coroutine[None, None, bytes | None]) -> None:
        try:
            answer = Answer(number, await value)
        except Exception as error:  # raised in the API process
            if type(error) not in ERROR_CLASSES.values():
                logger.exception("internal error in the engine")
            answer = Answer(number, error=error)
        except asyncio.CancelledError:  # the API process waits without a bound
            self.send(Answer(number, error=EngineUnavailableError("the engine stops")))
            raise
        self.send(answer)
