"""`RemoteStore`: the ResponseStore of an API process: the responses are in the master's memory.

One message at a time is sent, so that large responses do not fill the send buffer of the link.
"""

from __future__ import annotations

import asyncio

from orca_master.api_processes.link_messages import AskResponses, DeleteResponse, StoreResponse
from orca_master.api_processes.link_responses import TRUE, decode_responses
from orca_master.api_processes.remote_engine import RemoteEngine
from orca_master.endpoint.response_store import MAX_RESPONSE_BYTES, StoredResponse


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
            return await self._ask(owner, response_id, with_previous=True)

    async def get(self, owner: str, response_id: str) -> bytes | None:
        """See ResponseStore."""
        async with self._turn:
            found = await self._ask(owner, response_id, with_previous=False)
        return found[0] if found else None

    async def delete(self, owner: str, response_id: str) -> bool:
        """See ResponseStore."""
        async with self._turn:
            return await self._engine.ask(lambda number: DeleteResponse(number, owner, response_id)) == TRUE

    async def _ask(self, owner: str, response_id: str, with_previous: bool) -> list[bytes]:
        answer = await self._engine.ask(lambda number: AskResponses(number, owner, response_id, with_previous))
        return decode_responses(answer or b"")
