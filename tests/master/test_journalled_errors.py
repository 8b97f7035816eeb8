"""Who continues the stream of a request that has failed gets the error of the original stream, with its code."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import httpx
import pytest
from orca_master.endpoint.application import create_app
from orca_master.endpoint.endpoint import Endpoint, EndpointConfig
from orca_master.endpoint.recorder import failure_of_record, recorded
from orca_master.endpoint.responding import status_and_code
from orca_master.endpoint.resumable import ResumableRequests
from orca_master.errors import (
    ADAPTER_LIMIT,
    CONSTRAINT_ERROR,
    CONTEXT_EXCEEDED,
    EngineError,
    EngineUnavailableError,
    QueueFullError,
    RequestError,
    RequestTimeoutError,
)
from orca_master.journal.journal import Journal
from orca_master.scheduling.request import FinishReason
from orca_master.text.chat_template import ChatTemplate
from orca_master.text.tokenizer import TextCodec
from support.adapter_restorer import NO_ADAPTERS
from support.queue_client import Queue

MESSAGE = "the grammar is too complex"


def endpoint_of(folder: Path, engine: Queue) -> Endpoint:
    """Return an endpoint with the journal of `folder`."""
    endpoint = Endpoint(EndpointConfig(("m",)), engine, TextCodec(folder), ChatTemplate(folder))
    journal = Journal(folder / "journal", "m")
    endpoint.resumable = ResumableRequests(journal, endpoint.generator, 60, NO_ADAPTERS)
    return endpoint


async def ask(folder: Path, reason: FinishReason) -> str:
    """Return the text of a stream that ends with an error of the engine."""
    engine = Queue()
    endpoint = endpoint_of(folder, engine)
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(create_app(endpoint)), base_url="http://localhost"
    ) as client:
        body = {"prompt": [1, 2], "max_tokens": 5, "stream": True}
        asking = asyncio.create_task(client.post("/v1/completions", json=body))
        while not engine.receivers:
            await asyncio.sleep(0)
        engine.finish(1, finish_reason=None)
        engine.finish(1, token=None, finish_reason=reason, error=MESSAGE)
        text = (await asking).text
    assert endpoint.resumable is not None
    await endpoint.resumable.close()
    return text


async def read(folder: Path, request_id: str) -> tuple[str, str]:
    """Return the stream of the request from its beginning, and its JSON, from another master."""
    endpoint = endpoint_of(folder, Queue())
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(create_app(endpoint)), base_url="http://localhost"
    ) as client:
        path = f"/v1/requests/{request_id}"
        stream = await client.get(path, headers={"Accept": "text/event-stream"})
        whole = await client.get(path)
    assert endpoint.resumable is not None
    await endpoint.resumable.close()
    return stream.text, whole.text


@pytest.mark.parametrize(
    ("reason", "code"),
    [
        (FinishReason.CONSTRAINT, "constraint_error"),
        (FinishReason.FAULT, "engine_error"),
        (FinishReason.ERROR, "engine_unavailable"),
    ],
)
def test_the_error_is_that_of_the_original_stream(tmp_path, reason, code):
    original = asyncio.run(ask(tmp_path, reason))
    events = original.split("data: ")
    assert json.loads(events[-1])["error"]["code"] == code
    request_id = json.loads(events[1])["id"]
    for _ in range(2):  # the first other master writes the journal anew
        stream, whole = asyncio.run(read(tmp_path, request_id))
        assert stream == original
        assert (json.loads(whole)["status"], json.loads(whole)["error"]) == ("failed", MESSAGE)
        assert json.loads(whole)["error_code"] == code


@pytest.mark.parametrize(
    "failure",
    [
        EngineError(MESSAGE),
        EngineUnavailableError(MESSAGE),
        QueueFullError(MESSAGE),
        RequestTimeoutError(MESSAGE),
        RequestError(MESSAGE),
        RequestError(MESSAGE, code=CONSTRAINT_ERROR),
        RequestError(MESSAGE, code=CONTEXT_EXCEEDED),
        RequestError(MESSAGE, code=ADAPTER_LIMIT),
    ],
)
def test_each_error_has_its_status_and_code_again(failure):
    again = failure_of_record(recorded(failure))
    assert (status_and_code(again), str(again)) == (status_and_code(failure), MESSAGE)


@pytest.mark.parametrize("text", ["a worker was lost: again", "timeout: late", "cancelled: the client closed it"])
def test_texts_of_earlier_versions_are_errors_of_the_engine(text):
    again = failure_of_record(text)
    assert (status_and_code(again), str(again)) == ((500, "engine_error"), text)
