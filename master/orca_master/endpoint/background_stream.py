"""The stream of a background response, as the response store has it: each event once, in order, until the last one.

Any number of clients read it, each from an event of its choice. What a client has not read stays in the store.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from orca_master.endpoint.background import BackgroundRuns
from orca_master.endpoint.event_stream import EventStream
from orca_master.endpoint.response_objects import wire_event
from orca_master.endpoint.response_record import response_of
from orca_master.endpoint.response_store import Phase, ResponseStore
from orca_master.errors import EngineUnavailableError

_LAST_EVENTS = {Phase.CANCELLED: "response.incomplete", Phase.LOST: "response.failed"}
"""Kinds of the last event where the store has none. OpenAI's events do not include one for cancelled responses."""


def stored_stream(store: ResponseStore, runs: BackgroundRuns, owner: str, response_id: str, after: int) -> EventStream:
    """Return the events of a response with sequence numbers above `after`."""
    pages = _pages(store, owner, response_id, after)
    first = asyncio.ensure_future(anext(pages, []))
    return EventStream(_all(runs, first, pages), first)


async def _all(
    runs: BackgroundRuns, first: asyncio.Future[list[str]], pages: AsyncIterator[list[str]]
) -> AsyncIterator[list[str]]:
    with runs.activity.one():
        yield await first
        async for page in pages:
            yield page


async def _pages(store: ResponseStore, owner: str, response_id: str, after: int) -> AsyncIterator[list[str]]:
    """Yield the events that can be read together; end after the last one, and when the response is deleted."""
    try:
        while (page := await store.events(owner, response_id, after)) is not None and page.events:
            after += len(page.events)
            yield [event.decode() for event in page.events]
        if page is None or page.phase not in _LAST_EVENTS or after >= page.num_events:
            return
        if (found := await store.get(owner, response_id)) is not None:
            yield [wire_event({"type": _LAST_EVENTS[page.phase], "response": response_of(found)}, page.num_events)]
    except EngineUnavailableError:  # the master has ended, and the response with it
        return
