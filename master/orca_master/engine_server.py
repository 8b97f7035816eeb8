"""`EngineServer`: the engine on a Unix socket, for the API processes (engine_link.py has the messages)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path

from orca_master.endpoint import EndpointConfig
from orca_master.engine_client import EngineClient
from orca_master.engine_link import Answer, AskMetrics, Hello, Outputs, Release, Submit, receive, send
from orca_master.engine_types import Output

STATUS_SECONDS = 0.1
"""An engine that stops serving refuses what comes; its processes know from the next look at its status."""


class EngineServer:
    """Lets API processes submit; `listening` opens it. `model_path` and `config` are what each is told to serve."""

    def __init__(self, engine: EngineClient, model_path: Path, config: EndpointConfig) -> None:
        self._engine = engine
        self._model_path = model_path
        self._config = config
        self._announced = engine.status
        self._links: set[_Link] = set()
        self.joined = asyncio.Semaphore(0)
        """Released once for each process that has come."""

    @contextlib.asynccontextmanager
    async def listening(self, path: Path) -> AsyncIterator[None]:
        """Takes connections at `path` while the block runs."""
        server = await asyncio.start_unix_server(self._serve, path)
        watching = asyncio.create_task(self._watch())
        try:
            yield
        finally:
            watching.cancel()
            server.close()
            for link in self._links:
                link.writer.close()

    def announce(self) -> None:
        """Tells the processes what the engine is, if that has changed."""
        status = self._engine.status
        if status != self._announced:
            self._announced = status
            for link in self._links:
                send(link.writer, status)

    async def _watch(self) -> None:
        while True:
            self.announce()
            await asyncio.sleep(STATUS_SECONDS)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = _Link(writer)
        self._links.add(link)
        send(writer, Hello(self._model_path, self._config, self._announced))
        self.joined.release()
        try:
            while (message := await receive(reader)) is not None:
                match message:
                    case Submit(number, submission):
                        link.request_ids.add(submission.request_id)
                        link.answer(number, self._engine.submit(submission, link.receive))
                    case Release(request_id, ended_as):
                        link.request_ids.remove(request_id)
                        self._engine.release(request_id, ended_as)
                    case AskMetrics(number):
                        link.answer(number, self._engine.metrics())
        finally:
            self._links.discard(link)
            for request_id in link.request_ids:
                self._engine.release(request_id, "abort")
            writer.close()


class _Link:
    """One API process."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self.writer = writer
        self.request_ids: set[str] = set()
        self._outputs: list[Output] = []
        self._answers: set[asyncio.Task[None]] = set()

    def receive(self, output: Output) -> None:
        """Takes an output; those of one iteration come in one turn of the loop and leave in one message."""
        if not self._outputs:
            asyncio.get_running_loop().call_soon(self._flush)
        self._outputs.append(output)

    def answer(self, number: int, value: Awaitable[bytes | None]) -> None:
        """Sends the answer when it is there."""
        task = asyncio.create_task(self._answer(number, value))
        self._answers.add(task)
        task.add_done_callback(self._answers.discard)

    def _flush(self) -> None:
        send(self.writer, Outputs(self._outputs))
        self._outputs = []

    async def _answer(self, number: int, value: Awaitable[bytes | None]) -> None:
        try:
            answer = Answer(number, await value)
        except Exception as error:  # passed on to the process that asked
            answer = Answer(number, error=error)
        send(self.writer, answer)
