"""The port of the metrics: answers over TCP, and clients that are slow, send too much, or speak no HTTP."""

from __future__ import annotations

import asyncio
import socket

import pytest
from orca_operator import metrics_port
from orca_operator.metrics_port import REQUEST_BYTES, serving_metrics


def render() -> bytes:
    return b"orca_operator_queue_depth 0.0\n"


def free_port() -> int:
    """Return a port that is free on all addresses."""
    with socket.socket() as free:
        free.bind(("0.0.0.0", 0))
        return int(free.getsockname()[1])


async def exchange(port: int, request: bytes) -> bytes:
    """Send bytes; return everything until the server closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request)
        return await reader.read()
    finally:
        writer.close()


def answers(*requests: bytes) -> list[bytes]:
    async def run() -> list[bytes]:
        port = free_port()
        async with serving_metrics(port, render):
            return await asyncio.gather(*(exchange(port, request) for request in requests))

    return asyncio.run(asyncio.wait_for(run(), 60))


@pytest.mark.parametrize(
    ("request_line", "status", "body"),
    [
        ("GET /metrics HTTP/1.1", "200 OK", render()),
        ("GET /metrics?name=a HTTP/1.1", "200 OK", render()),
        ("GET / HTTP/1.1", "404 Not Found", b"unknown path (choose from /metrics)\n"),
        ("POST /metrics HTTP/1.1", "405 Method Not Allowed", b"only GET is allowed\n"),
        ("nonsense", "404 Not Found", b"unknown path (choose from /metrics)\n"),
    ],
)
def test_answers(request_line, status, body):
    (answer,) = answers(f"{request_line}\r\nHost: operator\r\n\r\n".encode())
    head, _, content = answer.partition(b"\r\n\r\n")
    assert head.split(b"\r\n")[0] == f"HTTP/1.1 {status}".encode()
    assert content == body
    assert f"Content-Length: {len(body)}".encode() in head


def test_a_request_that_does_not_end_is_cut_off(monkeypatch):
    """Two clients that send nothing or half a request do not hold up a third one."""
    monkeypatch.setattr(metrics_port, "REQUEST_SECONDS", 0.2)
    silent, half, whole = answers(b"", b"GET /metrics HTTP/1.1\r\n", b"GET /metrics HTTP/1.1\r\n\r\n")
    assert (silent, half) == (b"", b"")
    assert whole.endswith(render())


def test_a_request_that_is_too_long_is_cut_off(monkeypatch):
    """The limit of bytes ends it, not that of time."""
    monkeypatch.setattr(metrics_port, "REQUEST_SECONDS", 3600.0)
    (answer,) = answers(b"GET /metrics HTTP/1.1\r\nX: " + b"x" * (2 * REQUEST_BYTES))
    assert answer == b""


def test_the_end_does_not_wait_for_clients(monkeypatch):
    monkeypatch.setattr(metrics_port, "REQUEST_SECONDS", 3600.0)

    async def run() -> None:
        port = free_port()
        async with serving_metrics(port, render):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            await asyncio.sleep(0.1)
        assert await reader.read() == b""
        writer.close()

    asyncio.run(asyncio.wait_for(run(), 60))


def test_a_port_in_use_is_an_error():
    async def run(port: int) -> None:
        async with serving_metrics(port, render):
            pass

    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        with pytest.raises(OSError, match="in use"):
            asyncio.run(run(taken.getsockname()[1]))
