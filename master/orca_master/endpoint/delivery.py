"""Sends the answer of a running generation: one body, or a stream of events.

A stream starts after the first piece, so that a refusal has its own status code, but at the latest after
COMMENT_SECONDS. A client that disconnects cancels its generation.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, TypeVar

from fastapi import Request, Response

from orca_master.endpoint import event_stream
from orca_master.endpoint.choice_run import Piece

CLIENT_CLOSED_REQUEST = 499
"""Status of nginx for a client that has disconnected; only visible in logs."""
T = TypeVar("T")


async def deliver_body(request: Request, answer: Coroutine[Any, Any, bytes]) -> Response:
    """Return a response with the JSON that `answer` generates; raise what it raises."""
    body = await unless_gone(request, answer)
    if body is None:
        return Response(status_code=CLIENT_CLOSED_REQUEST)
    return Response(body, media_type="application/json")


async def deliver_stream(
    request: Request,
    pieces: AsyncIterator[list[Piece]],
    events: Callable[[asyncio.Task[list[Piece]]], AsyncIterator[list[str]]],
    keep_alive: bytes = event_stream.COMMENT,
) -> Response:
    """Return a stream of `events`, which awaits the first pieces from the given task and closes `pieces`.

    `keep_alive`: see EventStream. Raises what `pieces` raises before the stream starts.
    """
    first = first_of(pieces)
    try:
        if await _leaves_first(request, first, event_stream.COMMENT_SECONDS):
            first.cancel()
            await asyncio.gather(first, return_exceptions=True)
            return Response(status_code=CLIENT_CLOSED_REQUEST)
        if first.done():
            first.result()  # raises a refusal
    except BaseException:
        first.cancel()
        raise
    return event_stream.EventStream(events(first), first, keep_alive)


def first_of(pieces: AsyncIterator[list[Piece]]) -> asyncio.Task[list[Piece]]:
    """Return a task that waits for the first pieces."""

    async def wait() -> list[Piece]:
        return await anext(pieces)

    return asyncio.create_task(wait())


@contextlib.asynccontextmanager
async def groups_of(
    first: asyncio.Task[list[Piece]], pieces: AsyncIterator[list[Piece]]
) -> AsyncIterator[AsyncIterator[list[Piece]]]:
    """Yield an iterator over the pieces of `first` and the further `pieces`; close `pieces` at the end of the block."""

    async def groups() -> AsyncIterator[list[Piece]]:
        yield await first
        async for together in pieces:
            yield together

    try:
        yield groups()
    finally:
        await pieces.aclose()  # type: ignore[attr-defined]


async def unless_gone(request: Request, work: Coroutine[Any, Any, T]) -> T | None:
    """Await `work`; if the client disconnects first, cancel it and return None."""
    task = asyncio.create_task(work)
    try:
        return None if await _leaves_first(request, task) else task.result()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _leaves_first(request: Request, task: asyncio.Task[Any], timeout: float | None = None) -> bool:
    """Wait for a task, at most `timeout` seconds; return True if the client disconnects before."""
    gone = asyncio.create_task(_gone(request))
    try:
        await asyncio.wait((task, gone), timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        return gone.done() and not task.done()
    finally:
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
