"""`BatchCalls`: sends the lines of batches through the routes of this process, in the class of batches.

The routes validate bodies and answer errors as for any client. A second application has only these routes, without
middleware: keys, hosts and sizes were checked when the file was sent. Its engine marks every submission as one of a
batch, and its requests have no timeout, because they wait while others do. Lines may also use adapters that were loaded
again for them, by names that other requests cannot use.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import secrets
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Container
from dataclasses import replace
from typing import Any

from starlette.types import Message, Scope

from orca_master.batches.batch_run import LineAnswer
from orca_master.endpoint.application import create_generating_app
from orca_master.endpoint.endpoint import Endpoint
from orca_master.endpoint.middleware import OWNER
from orca_master.endpoint.restored_adapters import RestoredAdapters
from orca_master.engine.adapter_registry import ServedAdapter
from orca_master.engine.engine_client import EngineClient, EngineStatus
from orca_master.engine.messages import Output, Submission
from orca_master.journal.records import AdapterFiles
from orca_master.scheduling.request import ServiceClass

logger = logging.getLogger(__name__)

ANSWER_ID = re.compile(rb'\{"id": ?"([\w-]{1,100})"')
"""The beginning of an answer; the group is the id of the request in the log."""


class BatchEngine(EngineClient):
    """Passes submissions to `engine` as those of batches, at most `concurrency` embeddings at a time.

    `restored`: adapters that only lines of batches may use. An adapter that the engine serves comes before one of its
    name.
    """

    def __init__(self, engine: EngineClient, concurrency: int) -> None:
        self._engine = engine
        self.restored: tuple[ServedAdapter, ...] = ()
        self._turns = asyncio.Semaphore(concurrency)
        self._waiting: set[str] = set()
        self._embedding: set[str] = set()
        """Ids of the submissions that wait for a turn, and of those that have one."""

    @property
    def status(self) -> EngineStatus:
        """See EngineClient."""
        status = self._engine.status
        # The places of batches are bounded by --batch-concurrency; a line takes none of the queue.
        return replace(
            status,
            adapters=(*self.restored, *status.adapters),
            max_queued_requests=sys.maxsize,
            max_queued_tokens=sys.maxsize,
        )

    def submit(self, submission: Submission, receive: Callable[[Output], object]) -> Awaitable[None]:
        """See EngineClient."""
        of_batch = replace(submission, service_class=ServiceClass.BATCH, choices=None)
        if of_batch.pooling is None:
            return self._engine.submit(of_batch, receive)
        self._waiting.add(of_batch.request_id)
        return self._embed(of_batch, receive)

    async def _embed(self, submission: Submission, receive: Callable[[Output], object]) -> None:
        """Submit a text to embed in its turn: a line has up to 1024 texts, and takes the places of a few."""
        request_id = submission.request_id

        def pass_on(output: Output) -> None:
            if output.finish_reason is not None or output.error is not None:
                self._end_turn(request_id)
            receive(output)

        await self._turns.acquire()
        self._waiting.remove(request_id)
        self._embedding.add(request_id)
        await self._engine.submit(submission, pass_on)

    def _end_turn(self, request_id: str) -> None:
        if request_id in self._embedding:
            self._embedding.remove(request_id)
            self._turns.release()

    def release(self, request_id: str, ended_as: str | None) -> None:
        """See EngineClient."""
        if request_id in self._waiting:  # the engine does not have it
            self._waiting.remove(request_id)
            return
        self._end_turn(request_id)
        self._engine.release(request_id, ended_as)

    def note_response(self, route: str, status: int) -> None:
        """See EngineClient."""
        self._engine.note_response(route, status)

    async def metrics(self) -> bytes:
        """See EngineClient."""
        return await self._engine.metrics()


class BatchCalls:
    """Calls the routes of `endpoint`, whose stored responses they share. Implements LineCalls.

    `concurrency`: see BatchConfig.
    """

    def __init__(self, endpoint: Endpoint, restored: RestoredAdapters, concurrency: int) -> None:
        config = replace(endpoint.config, request_timeout=None)
        self._engine, self._models, self._restored = endpoint.engine, endpoint.models, restored
        self._batch_engine = engine = BatchEngine(endpoint.engine, concurrency)
        # The inner endpoint has a BodyChecker of its own: large bodies of batches delay no bodies of other clients.
        inner = Endpoint(config, engine, endpoint.codec, endpoint.template, store=endpoint.responses)
        self._app = create_generating_app(inner)

    def served_to(self, owner: str) -> Container[str]:
        """See LineCalls."""
        return self._models.numbers(owner)

    def loaded_by(self, owner: str) -> dict[str, AdapterFiles]:
        """See LineCalls."""
        served = (adapter for adapter in self._engine.status.adapters if adapter.owner == owner)
        files = {adapter.name: self._restored.files(adapter.number) for adapter in served}
        return {name: entry for name, entry in files.items() if entry is not None}

    @contextlib.asynccontextmanager
    async def restored(self, owner: str, files: AdapterFiles) -> AsyncIterator[None]:
        """See LineCalls."""
        async with self._restored.held(owner, files) as number:
            adapter = ServedAdapter(files.name, number, owner)
            engine = self._batch_engine
            engine.restored = (*engine.restored, adapter)
            try:
                yield
            finally:
                engine.restored = tuple(entry for entry in engine.restored if entry != adapter)

    async def call(self, owner: str, path: str, body: bytes) -> LineAnswer:
        """See LineCalls."""
        scope: Scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "query_string": b"",
            "headers": [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())],
            "client": None,
            "server": None,
            OWNER: owner,
        }
        exchange = _Exchange(body)
        try:
            await self._app(scope, exchange.receive, exchange.send)
        except Exception:  # Starlette raises the error again after its response with status 500
            logger.exception("a request of a batch to %s failed", path)
            if exchange.status != 500:
                raise
        body = bytes(exchange.answer)
        answer_id = ANSWER_ID.match(body)
        # Errors and embeddings have no id.
        request_id = answer_id[1].decode() if answer_id is not None else secrets.token_hex(16)
        return LineAnswer(exchange.status, request_id, body)


class _Exchange:
    """The client's end of one request: sends the body, then waits without an end, and collects the answer."""

    def __init__(self, body: bytes) -> None:
        self._body: bytes | None = body
        self.status = 0
        self.answer = bytearray()

    async def receive(self) -> Message:
        """See ASGI 3.0."""
        if self._body is None:
            await asyncio.get_running_loop().create_future()
        body, self._body = self._body, None
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(self, message: Any) -> None:
        """See ASGI 3.0."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
        else:
            self.answer += message.get("body", b"")
