"""`MemoryStore`: the stored responses of /v1/responses in the memory of the master, with the limits of `Shelves`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

from orca_master.endpoint.response_shelves import ENTRY_BYTES, Kept, Shelves, Watcher, do_nothing, size_of
from orca_master.endpoint.response_store import (
    ENDING_BYTES,
    MAX_CONVERSATION_BYTES,
    MAX_RESPONSE_BYTES,
    PAGE_BYTES,
    EventPage,
    FoundResponse,
    Phase,
    StoredResponse,
    StoreLimits,
    check_beginning,
    fit,
)
from orca_master.errors import QueueFullError, RequestError


class MemoryStore:
    """`ResponseStore` in memory; `clock` in seconds."""

    def __init__(self, limits: StoreLimits, clock: Callable[[], float] = time.monotonic) -> None:
        self._limits = limits
        self.shelves = Shelves(limits, clock)

    async def put(self, stored: StoredResponse) -> bool:
        """See ResponseStore."""
        size = len(stored.data) + ENTRY_BYTES
        if not self._limits.count or not fit(stored.data) or size > self._limits.num_bytes:
            return False
        self.shelves.remove(stored.owner, stored.response_id)
        if not self.shelves.make_room(1, size):
            return False
        self.shelves.add(Kept(stored, size))
        return True

    async def conversation(self, owner: str, response_id: str) -> list[bytes]:
        """See ResponseStore."""
        self.shelves.expire()
        found: dict[str, bytes] = {}
        num_bytes = 0
        while response_id:
            kept = None if response_id in found else self.shelves.find(owner, response_id)
            if kept is None:
                return []
            if kept.phase.is_running:
                raise RequestError(
                    f"previous_response_id: the response {response_id} is in progress: wait for its end, or cancel it",
                    "previous_response_id",
                )
            found[response_id] = kept.stored.data
            num_bytes += len(kept.stored.data)
            if num_bytes > MAX_CONVERSATION_BYTES:
                limit = f"{MAX_CONVERSATION_BYTES >> 20} MiB"
                raise RequestError(
                    f"previous_response_id: the conversation has more than {limit}: send its last items in input",
                    "previous_response_id",
                )
            response_id = kept.stored.previous
        return list(found.values())[::-1]

    async def get(self, owner: str, response_id: str) -> FoundResponse | None:
        """See ResponseStore."""
        self.shelves.expire()
        kept = self.shelves.find(owner, response_id)
        return None if kept is None else FoundResponse(kept.stored.data, kept.phase, len(kept.events))

    async def delete(self, owner: str, response_id: str) -> bool:
        """See ResponseStore."""
        self.shelves.expire()
        return self.shelves.remove(owner, response_id)

    async def begin(self, stored: StoredResponse, events: Sequence[bytes], stop: Callable[[], None]) -> None:
        """See ResponseStore."""
        # Reserved for a response without output: its data, and its event if events are stored.
        reserved = ENDING_BYTES + (len(stored.data) + ENDING_BYTES if events else 0)
        size = len(stored.data) + ENTRY_BYTES + size_of(events) + reserved
        half = self._limits.num_bytes // 2
        check_beginning(stored, events)
        if size > half:
            raise RequestError(
                f"background: before its first token this response takes {size} bytes of the {half} that background "
                "responses can have (half of --max-stored-response-bytes): shorten the input, or leave background out",
                "background",
            )
        self.shelves.remove(stored.owner, stored.response_id)
        if not self.shelves.may_begin(stored.owner, size) or not self.shelves.make_room(1, size):
            raise QueueFullError(
                "the stored responses have no room for another background response (--max-stored-responses, "
                "--max-stored-response-bytes): wait until one has ended, or cancel one"
            )
        self.shelves.add(Kept(stored, size, Phase.QUEUED, list(events), stop))

    async def advance(self, owner: str, response_id: str, events: Sequence[bytes]) -> bool:
        """See ResponseStore."""
        kept = self.shelves.running(owner, response_id)
        if kept is None:
            return True
        size = size_of(events)
        fits = sum(map(len, events)) <= MAX_RESPONSE_BYTES and self.shelves.may_grow(owner, size)
        if not fits or not self.shelves.make_room(0, size):
            return False
        self.shelves.take(kept)
        kept.phase = Phase.IN_PROGRESS
        kept.events += events
        kept.num_bytes += size
        self.shelves.add(kept)
        return True

    async def end(self, owner: str, response_id: str, data: bytes, events: Sequence[bytes]) -> bool:
        """See ResponseStore."""
        kept = self.shelves.running(owner, response_id)
        if kept is None:
            return True
        growth = len(data) + ENTRY_BYTES + size_of(kept.events) + size_of(events) - kept.num_bytes
        if not fit(data, *events) or not self.shelves.make_room(0, max(0, growth)):
            return False
        self.shelves.take(kept)
        kept.stored = StoredResponse(response_id, owner, kept.stored.previous, data)
        kept.events += events
        self._add_ended(kept, Phase.ENDED)
        return True

    async def cancel(self, owner: str, response_id: str) -> None:
        """See ResponseStore."""
        if (kept := self.shelves.running(owner, response_id)) is not None:
            kept.stop()
            self.shelves.take(kept)
            self._add_ended(kept, Phase.CANCELLED)

    def lose(self, owner: str, response_id: str) -> None:
        """Note that the process that generates a background response has ended."""
        if (kept := self.shelves.running(owner, response_id)) is not None:
            self.shelves.take(kept)
            self._add_ended(kept, Phase.LOST)

    async def events(self, owner: str, response_id: str, after: int) -> EventPage | None:
        """See ResponseStore."""
        changed = asyncio.Event()

        def watcher(_: str) -> None:
            changed.set()

        while True:
            page = self.page(owner, response_id, after, watcher)
            if page is None or page.events or not page.phase.is_running:
                return page
            try:
                await changed.wait()
            finally:
                if (kept := self.shelves.running(owner, response_id)) is not None:
                    kept.watchers.discard(watcher)
            changed.clear()

    def page(self, owner: str, response_id: str, after: int, watcher: Watcher) -> EventPage | None:
        """Return events as `events` does, but do not wait: call `watcher` at the next change if there are none."""
        self.shelves.expire()
        kept = self.shelves.find(owner, response_id)
        if kept is None:
            return None
        page: list[bytes] = []
        num_bytes = 0
        for index in range(after + 1, len(kept.events)):
            num_bytes += len(kept.events[index])
            if page and num_bytes > PAGE_BYTES:
                break
            page.append(kept.events[index])
        if not page and kept.phase.is_running:
            kept.watchers.add(watcher)
        return EventPage(page, len(kept.events), kept.phase)

    def _add_ended(self, kept: Kept, phase: Phase) -> None:
        """Add a response that ran, and was taken."""
        kept.phase = phase
        kept.stop = do_nothing
        kept.num_bytes = len(kept.stored.data) + ENTRY_BYTES + size_of(kept.events)
        self.shelves.add(kept)
