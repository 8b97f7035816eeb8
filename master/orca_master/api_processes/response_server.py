"""`ResponseServer`: the master's end of the messages about stored responses (link_server.py has the links).

A background response belongs to the link that has begun it, which adds its events. Any link may read it, cancel it and
delete it, for the owner that the link names. When the link ends, its background responses are lost.
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
    FromMaster,
    ResponseMessage,
    ResponsesChanged,
    StopResponse,
    StoreResponse,
)
from orca_master.api_processes.link_responses import FALSE, TRUE, encode_found, encode_page, encode_responses
from orca_master.endpoint.memory_store import MemoryStore
from orca_master.endpoint.response_store import StoredResponse


class ResponseLink:
    """The background responses of one link, `running`: id → owner. `send` sends a message to the process."""

    def __init__(self, send: Callable[[FromMaster], None]) -> None:
        self.running: dict[str, str] = {}
        self.has_ended = False
        self._send = send
        self._changed: list[str] = []

    def note_change(self, response_id: str) -> None:
        """Report a change. The changes of one event-loop step are sent as one message."""
        if not self._changed:
            asyncio.get_running_loop().call_soon(self._flush)
        self._changed.append(response_id)

    def stop(self, response_id: str) -> None:
        """Report that a response of this link is not wanted any more."""
        self.running.pop(response_id, None)
        self._send(StopResponse(response_id))

    def _flush(self) -> None:
        changed, self._changed = self._changed, []
        self._send(ResponsesChanged(changed))


class ResponseServer:
    """Answers messages about responses from a store."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store

    async def answer(self, link: ResponseLink, message: ResponseMessage) -> bytes:
        """Return the value of the answer, or raise its error."""
        store = self._store
        value = TRUE
        match message:
            case StoreResponse(_, stored):
                value = _truth(await store.put(stored))
            case AskResponses(_, owner, response_id, True):
                value = encode_responses(await store.conversation(owner, response_id))
            case AskResponses(_, owner, response_id, False):
                value = encode_found(await store.get(owner, response_id))
            case DeleteResponse(_, owner, response_id):
                value = _truth(await store.delete(owner, response_id))
            case BeginResponse(_, stored, events):
                await self._begin(link, stored, events)
            case AdvanceResponse(_, owner, response_id, events):
                value = _truth(await store.advance(owner, response_id, events))
            case EndResponse(_, owner, response_id, data, events):
                value = _truth(await store.end(owner, response_id, data, events))
                if value == TRUE:
                    link.running.pop(response_id, None)
            case CancelResponse(_, owner, response_id):
                await store.cancel(owner, response_id)
            case AskEvents(_, owner, response_id, after):
                value = encode_page(store.page(owner, response_id, after, link.note_change))
        return value

    def lose(self, link: ResponseLink) -> None:
        """Note that the link has ended."""
        link.has_ended = True
        for response_id, owner in link.running.items():
            self._store.lose(owner, response_id)

    async def _begin(self, link: ResponseLink, stored: StoredResponse, events: Sequence[bytes]) -> None:
        await self._store.begin(stored, events, lambda: link.stop(stored.response_id))
        link.running[stored.response_id] = stored.owner
        if link.has_ended:  # after the message, and before it was processed
            self._store.lose(stored.owner, stored.response_id)


def _truth(value: bool) -> bytes:
    return TRUE if value else FALSE
