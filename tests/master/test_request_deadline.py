"""Until when a request must have ended."""

from __future__ import annotations

import asyncio
import time

import httpx
import pytest
from fastapi import Request
from orca_master.endpoint.application import create_app
from orca_master.endpoint.request_deadline import ARRIVAL, TimeLimit, time_limit
from orca_master.errors import RequestTimeoutError
from support.scripted_engine import END, MODEL, Scripted, make_model

CHAT = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 2}


@pytest.mark.parametrize(
    ("server", "client", "timeout"),
    [(5.0, None, 5.0), (5.0, "60", 5.0), (60.0, "5", 5.0), (None, "5", 5.0), (None,) * 3],
)
def test_the_smaller_timeout_applies_from_the_arrival_on(server, client, timeout):
    headers = [] if client is None else [(b"x-request-deadline", client.encode())]
    request = Request({"type": "http", "headers": headers, ARRIVAL: 7.0})
    assert time_limit(request, server) == TimeLimit(7.0, timeout)


def test_work_ends_at_the_deadline_and_does_not_begin_after_it():
    begun = []

    async def work(since_arrival: float) -> None:
        limit = TimeLimit(time.monotonic() - since_arrival, 8.5)
        async with asyncio.timeout(20), limit.applied():
            begun.append(since_arrival)
            await asyncio.Event().wait()

    for since_arrival in (8.0, 9.0):
        with pytest.raises(RequestTimeoutError, match=r"not finished within 8\.5 s"):
            asyncio.run(work(since_arrival))
    assert begun == [8.0]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", CHAT),
        ("/v1/messages", CHAT | {"model": MODEL}),
        ("/v1/responses", {"input": "a"}),
        ("/v1/completions", {"prompt": "a"}),
        ("/v1/embeddings", {"input": "a"}),
        ("/v1/score", {"text_1": "a", "text_2": "b"}),
        ("/rerank", {"query": "a", "documents": ["b"]}),
    ],
)
def test_a_deadline_and_the_metrics_count_the_time_of_the_texts(tmp_path, monkeypatch, path, body):
    """A template or a tokenizer that never ends is waited for until the deadline; times begin before both."""

    async def run() -> None:
        scripted = Scripted(make_model(tmp_path, "{{ messages[0].content }}"), f"hi{END}")
        gate, reached = asyncio.Event(), []

        async def slow(*_arguments: object, **_options: object) -> list[int]:
            reached.append(time.monotonic())
            await gate.wait()
            return scripted.codec.encode("a")

        monkeypatch.setattr(type(scripted.endpoint), "encode", slow)
        transport = httpx.ASGITransport(create_app(scripted.endpoint))
        async with scripted.template, httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            late = await client.post(path, json=body, headers={"X-Request-Deadline": "0.05"})
            assert (late.status_code, "not finished within 0.05 s" in late.text) == (408, True)
            reached.clear()
            asking = asyncio.create_task(client.post(path, json=body))
            while not reached:
                await asyncio.sleep(0)
            gate.set()
            assert (await asking).status_code == 200
        assert scripted.engine.submissions[0].arrived < reached[0]

    asyncio.run(asyncio.wait_for(run(), 60))
