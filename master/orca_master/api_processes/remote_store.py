"""`RemoteStore`: the ResponseStore of an API process: the responses are in the master's memory.

One message at a time is sent, so that large responses do not fill the send buffer of the link.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from orca_master.api_processes.link_messages import (
    AdvanceResponse,
    AskEvents,
    AskResponses,
    BeginResponse,
    CancelResponse,
    DeleteResponse,
    EndResponse,
    StoreResponse,
)
from orca_master.api_processes.link_responses import TRUE, decode_found, decode_page, decode_responses
from orca_master.api_processes.remote_engine import RemoteEngine
from orca_master.endpoint.response_store import (
    MAX_RESPONSE_BYTES,
    EventPage,
    FoundResponse,
    StoredResponse,
    check_beginning,
    fit,
)


class RemoteStore:
    """Stored responses in the master at the other end of the link; raises EngineUnavailableError after its end."""

    def __init__(self, engine: RemoteEngine) -> None:
        self._engine = engine
        self._turn = asyncio.Lock()

    async def put(self, stored: StoredResponse) -> bool:
        """See ResponseStore."""
        if len(stored.data) > MAX_RESPONSE_BYTES:
            return False
        async with self._turn:
            return await self._engine.ask(lambda number: StoreResponse(number, stored)) == TRUE

    async def conversation(self, owner: str, response_id: str) -> list[bytes]:
        """See ResponseStore."""
        async with self._turn:
            return decode_responses(await self._ask(owner, response_id, with_previous=True))

    async def get(self, owner: str, response_id: str) -> FoundResponse | None:
        """See ResponseStore."""
        async with self._turn:
            return decode_found(await self._ask(owner, response_id, with_previous=False))

    async def delete(self, owner: str, response_id: str) -> bool:
        """See ResponseStore."""
        async with self._turn:
            return await self._engine.ask(lambda number: DeleteResponse(number, owner, response_id)) == TRUE

    async def begin(self, stored: StoredResponse, events: Sequence[bytes], stop: Callable[[], None]) -> None:
        """See ResponseStore."""
        check_beginning(stored, events)
        self._engine.notices.begin(stored.response_id, stop)
        try:
            async with self._turn:
                await self._engine.ask(lambda number: BeginResponse(number, stored, events))
        except BaseException:
            self._engine.notices.end(stored.response_id)
            raise

    async def advance(self, owner: str, response_id: str, events: Sequence[bytes]) -> bool:
        """See ResponseStore."""
        if sum(map(len, events)) > MAX_RESPONSE_BYTES:
            return False
        async with self._turn:
            return await self._engine.ask(lambda number: AdvanceResponse(number, owner, response_id, events)) == TRUE

    async def end(self, owner: str, response_id: str, data: bytes, events: Sequence[bytes]) -> bool:
        """See ResponseStore."""
        if not fit(data, *events):
            return False
        async with self._turn:
            kept = await self._engine.ask(lambda number: EndResponse(number, owner, response_id, data, events)) == TRUE
        if kept:
            self._engine.notices.end(response_id)
        return kept

    async def cancel(self, owner: str, response_id: str) -> None:
        """See ResponseStore."""
        async with self._turn:
            await self._engine.ask(lambda number: CancelResponse(number, owner, response_id))

    async def events(self, owner: str, response_id: str, after: int) -> EventPage | None:
        """See ResponseStore."""
        with self._engine.notices.watching(response_id) as changed:
            while True:
                changed.clear()
                async with self._turn:
                    answer = await self._engine.ask(lambda number: AskEvents(number, owner, response_id, after))
                page = decode_page(answer or b"")
                if page is None or page.events or not page.phase.is_running:
                    return page
                await changed.wait()

    async def _ask(self, owner: str, response_id: str, with_previous: bool) -> bytes:
        answer = await self._engine.ask(lambda number: AskResponses(number, owner, response_id, with_previous))
        return answer or b""
