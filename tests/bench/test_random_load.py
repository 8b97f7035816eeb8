"""Requests of a random load against a server with prepared answers."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from itertools import count
from types import MappingProxyType, SimpleNamespace

import pytest
from aiohttp import web
from orca_bench import random_load
from orca_bench.random_load import Asked, arrivals, ask, capacity, checked, clients

TOKEN = b'data: {"choices": [{"index": 0, "text": "x"}]}\n\n'
DONE = b"data: [DONE]\n\n"


async def asked_of(
    chunks: list[bytes],
    status: int = 200,
    cancelled: float = 0.0,
    endless: bool = False,
    headers: Mapping[str, str] = MappingProxyType({"Retry-After": "7"}),
) -> Asked:
    """Ask a server that answers with `chunks`, and then with tokens until the client leaves if `endless`."""
    left = asyncio.Event()

    async def completions(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(status=status, headers=headers)
        await response.prepare(request)
        try:
            for chunk in chunks:
                await response.write(chunk)
            while endless:
                await response.write(TOKEN)
                await asyncio.sleep(0.001)
        except ConnectionError:
            left.set()
            raise
        return response

    application = web.Application()
    application.router.add_post("/v1/completions", completions)
    runner = web.AppRunner(application)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        host, port = runner.addresses[0]
        async with clients(f"http://{host}:{port}") as session:
            asked = await ask(session, random.Random(0), cancelled)
            if endless:
                await asyncio.wait_for(left.wait(), 30)
        return asked
    finally:
        await runner.cleanup()


def test_a_completed_request_has_a_time_per_token_and_comments_are_none():
    asked = asyncio.run(asked_of([TOKEN, b": waiting\n\n", TOKEN, DONE]))
    assert len(asked.tokens) == 2
    assert asked.sent < asked.tokens[0] <= asked.tokens[1] <= asked.ended
    assert asked.wait == asked.tokens[0] - asked.sent
    assert (asked.error, asked.cancelled, asked.retry_after) == ("", False, 0)
    assert checked(asked) is asked


def test_a_cancelled_request_closes_its_connection():
    asked = asyncio.run(asked_of([], cancelled=1.0, endless=True))
    assert asked.cancelled
    assert asked.tokens
    assert asked.error == ""


@pytest.mark.parametrize(
    ("status", "chunks", "error"),
    [
        (200, [TOKEN], "the stream ended early"),
        (200, [TOKEN, b'data: {"error": {"message": "lost"}}\n\n', DONE], "lost"),
        (503, [b"recovering"], "HTTP 503: recovering"),
    ],
)
def test_a_failed_request_has_the_reason(status, chunks, error):
    asked = asyncio.run(asked_of(chunks, status))
    assert error in asked.error
    with pytest.raises(RuntimeError, match=error):
        checked(asked)


def test_a_refused_request_has_its_retry_after_and_no_error():
    asked = asyncio.run(asked_of([b"full"], 429))
    assert (asked.retry_after, asked.error) == (7, "")


@pytest.mark.parametrize("headers", [{}, {"Retry-After": "0"}, {"Retry-After": "soon"}])
def test_a_refusal_that_does_not_say_when_to_try_again_is_a_failure(headers):
    asked = asyncio.run(asked_of([b"full"], 429, headers=headers))
    assert (asked.retry_after, asked.error) == (0, "HTTP 429: full")


def test_a_capacity_needs_a_server_that_refuses_no_request(monkeypatch):
    """Each look at the clock is 50 ms after the last; a request looks at it twice, so that 10 end in a second."""
    clock = count(step=0.05)
    monkeypatch.setattr(random_load, "time", SimpleNamespace(monotonic=lambda: next(clock)))

    async def answered(retry_after: int) -> Asked:
        await asyncio.sleep(0)
        return Asked(0.0, ended=next(clock), retry_after=retry_after)

    monkeypatch.setattr(random_load, "ask", lambda session, drawn: answered(0))
    assert asyncio.run(capacity("http://127.0.0.1:9", 0)) == pytest.approx(10, rel=0.1)
    monkeypatch.setattr(random_load, "ask", lambda session, drawn: answered(7))
    with pytest.raises(RuntimeError, match="refused one of 64 concurrent requests"):
        asyncio.run(capacity("http://127.0.0.1:9", 0))


def test_arrivals_are_as_many_as_the_rate_says_and_the_seed_repeats_them():
    async def number(seed: int) -> int:
        return len([None async for _ in arrivals(20_000.0, 0.05, random.Random(seed))])

    counts = [asyncio.run(number(seed)) for seed in (1, 1, 2)]
    assert counts[0] == counts[1] != counts[2]
    assert all(800 < number < 1200 for number in counts)
