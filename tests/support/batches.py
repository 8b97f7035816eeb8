"""A server with batches in a folder, its official clients, and the steps of their scenes."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import openai
from orca_master.batches.config import BatchConfig
from orca_master.batches.disk_threads import DiskThreads
from orca_master.batches.input_lines import BatchLine, InputLines, InvalidLine
from orca_master.batches.service import Batches, open_batches
from orca_master.endpoint.api_keys import digest
from orca_master.endpoint.application import create_app
from orca_master.endpoint.batch_calls import BatchCalls
from orca_master.endpoint.restored_adapters import RestoredAdapters
from orca_master.engine.adapter_calls import AdapterRestorer
from orca_master.engine.engine_client import EngineStatus
from orca_master.engine.messages import Output, Submission

from support.scripted_engine import END, MODEL, Scripted, ScriptedEngine, make_model

TEMPLATE = "{{ messages | tojson }}"


def request_line(custom_id: Any, url: str, body: Mapping[str, Any]) -> str:
    """Return a line of a batch's input."""
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": url, "body": body}) + "\n"


def line(custom_id: Any, url: str = "/v1/completions", **body: Any) -> str:
    """Return a line of a batch's input: a request whose body has these fields, too."""
    return request_line(custom_id, url, {"model": MODEL, "prompt": "a", "max_tokens": 4} | body)


class GatedEngine(ScriptedEngine):
    """Answers a submission when `gate` is set, and notes how requests ended. `tasks`: one for each submission."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.gate = asyncio.Event()
        self.released: list[str | None] = []
        self.tasks: list[asyncio.Task[None]] = []
        self.is_draining = False

    @property
    def status(self) -> EngineStatus:
        return replace(super().status, draining=self.is_draining)

    def respond(self, submission: Submission, receive: Callable[[Output], object]) -> None:
        self.tasks.append(asyncio.create_task(self._respond_later(submission, receive)))

    def release(self, request_id: str, ended_as: str | None) -> None:
        self.released.append(ended_as)

    async def _respond_later(self, submission: Submission, receive: Callable[[Output], object]) -> None:
        await self.gate.wait()
        super().respond(submission, receive)


class Server:
    """A scripted server with batches in a folder, and official clients of it, by key."""

    def __init__(
        self,
        model: Path,
        folder: Path,
        engine: Any = ScriptedEngine,
        restorer: AdapterRestorer | None = None,
        **limits: Any,
    ) -> None:
        self._restorer = restorer
        self.config = BatchConfig(folder, **limits)
        self._keys = frozenset({digest("one"), digest("two")})
        self.scripted = Scripted(model, f"hi{END}", engine=engine, batches=self.config, api_keys=self._keys)
        self.batches: Batches

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[openai.AsyncOpenAI]:
        """Run the server; the client is that of the key `one`."""
        endpoint = self.scripted.endpoint
        adapters = RestoredAdapters(self._restorer, lambda: endpoint.generator.is_stopped)
        calls = BatchCalls(endpoint, adapters, self.config.concurrency)
        async with self.scripted.template, open_batches(self.config, calls) as self.batches:
            endpoint.batches = self.batches
            self.batches.start()
            self.transport = httpx.ASGITransport(create_app(endpoint))
            yield self.client("one")

    @property
    def num_promised(self) -> int:
        """Files that may come."""
        files = self.batches.files
        return files.places.total - sum(len(files.of(key)) for key in self._keys)

    async def wait_for_places(self, count: int) -> None:
        """Return when so many choices of batches are being generated."""
        while self.batches.runner.places.num_taken < count:
            await asyncio.sleep(0.01)

    def client(self, key: str) -> openai.AsyncOpenAI:
        """Return a client with an API key, `one` or `two`."""
        http = httpx.AsyncClient(transport=self.transport)
        return openai.AsyncOpenAI(base_url="http://localhost/v1", api_key=key, max_retries=0, http_client=http)


def servers(folder: Path) -> Callable[..., Server]:
    """Return a function that makes servers, which keep their batches in the same folder, one after another."""
    (folder / "model").mkdir()
    model = make_model(folder / "model", TEMPLATE)
    return lambda engine=ScriptedEngine, **options: Server(model, folder / "batches", engine, **options)


def play(made: Server, scene: Callable[[openai.AsyncOpenAI], Awaitable[None]]) -> None:
    """Run a server, and the scene with the client of the key `one`, for 60 s at most."""

    async def run() -> None:
        async with made.running() as client:
            await scene(client)

    asyncio.run(asyncio.wait_for(run(), 60))


async def upload(client: openai.AsyncOpenAI, text: str | bytes, name: str = "in.jsonl") -> str:
    """Send an input; return the id of its file."""
    content = text.encode() if isinstance(text, str) else text
    return (await client.files.create(file=(name, content), purpose="batch")).id


async def created(client: openai.AsyncOpenAI, file_id: str, endpoint: Any = "/v1/completions", **more: Any) -> Any:
    """Return a new batch."""
    return await client.batches.create(input_file_id=file_id, endpoint=endpoint, completion_window="24h", **more)


async def ended(client: openai.AsyncOpenAI, batch_id: str) -> Any:
    """Return a batch when it has its final status."""
    while (batch := await client.batches.retrieve(batch_id)).status in {
        "validating",
        "in_progress",
        "finalizing",
        "cancelling",
    }:
        await asyncio.sleep(0.01)
    return batch


async def lines_of(client: openai.AsyncOpenAI, file_id: str | None) -> list[dict[str, Any]]:
    """Return the answers in a file."""
    assert file_id is not None
    return [json.loads(text) for text in (await client.files.content(file_id)).text.splitlines()]


async def read_input(path: Path, max_bytes: int, endpoint: str = "/v1/completions") -> list[BatchLine | InvalidLine]:
    """Return the lines of an input as a run reads them; up to 8 choices each."""
    with InputLines(path, endpoint, max_bytes, 8, DiskThreads()) as lines:
        found = []
        while (line := await lines.next()) is not None:
            found.append(line)
        return found
