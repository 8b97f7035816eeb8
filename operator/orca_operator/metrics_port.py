"""The HTTP port of the operator's metrics. One request per connection, bounded in bytes and in time.

Plain asyncio: the image of the operator has no HTTP server but kopf's, which waits for a request without a bound.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

from prometheus_client import CONTENT_TYPE_LATEST

PATH = "/metrics"
REQUEST_SECONDS = 5.0
"""Bound of one connection, from its first byte to the end of the response."""
REQUEST_BYTES = 16 * 1024


@contextlib.asynccontextmanager
async def serving_metrics(port: int, render: Callable[[], bytes]) -> AsyncIterator[None]:
    """Answer `GET /metrics` on all addresses while the block runs; raise OSError if the port is in use."""
    connections: set[asyncio.Task[None]] = set()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        connections.add(task)
        try:
            async with asyncio.timeout(REQUEST_SECONDS):
                request = await reader.readuntil(b"\r\n\r\n")
                writer.write(_answer(request.split(b"\r\n")[0], render))
                await writer.drain()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # the client does not speak HTTP, is gone, or is slow
        finally:
            connections.discard(task)
            writer.close()

    server = await asyncio.start_server(connected, None, port, limit=REQUEST_BYTES)
    try:
        yield
    finally:
        server.close()
        for task in connections:
            task.cancel()
        await asyncio.gather(*connections, return_exceptions=True)


def _answer(request: bytes, render: Callable[[], bytes]) -> bytes:
    """Return the response to a request line."""
    method, _, rest = request.partition(b" ")
    path = rest.partition(b" ")[0].partition(b"?")[0]
    kind = "text/plain; charset=utf-8"
    if path != PATH.encode():
        status, body = "404 Not Found", f"unknown path (choose from {PATH})\n".encode()
    elif method != b"GET":
        status, body = "405 Method Not Allowed", b"only GET is allowed\n"
    else:
        status, body, kind = "200 OK", render(), CONTENT_TYPE_LATEST
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    return head.encode() + body
