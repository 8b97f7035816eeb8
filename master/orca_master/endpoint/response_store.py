"""`ResponseStore`: the stored responses of /v1/responses; `MemoryStore` keeps them in the memory of the master.

A response belongs to the API key that made it (its digest, "" without keys) and is found only with this key. The number
of responses, their bytes and their age since the last use are limited. A new response replaces the least recently used
ones of the key that has most, so that no client can push out the responses of others.
"""

from __future__ import annotations

import re
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from orca_master.errors import RequestError

RESPONSE_ID = re.compile(r"resp_[0-9a-f]{32}", re.ASCII)
"""Ids that responses have."""
MAX_RESPONSE_BYTES = 4 << 20
"""Maximum size of one stored response; a larger one is not stored."""
MAX_CONVERSATION_BYTES = 16 << 20
"""Maximum size of a response with all responses before it; a longer conversation cannot be continued."""


@dataclass(frozen=True, slots=True)
class StoreLimits:
    """Limits of the store. `count` 0 turns it off; `seconds`: since the last use of a response."""

    count: int = 1000
    num_bytes: int = 64 << 20
    seconds: float = 86400.0


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """One response. `previous`: the id of the response that it continues, "" for the first; `data`: see
    response_record.py."""

    response_id: str
    owner: str
    previous: str
    data: bytes


class ResponseStore(Protocol):
    """Stored responses, in this process or in the master's."""

    async def put(self, stored: StoredResponse) -> bool:
        """Store a response; return False if it is too large or the store is off."""

    async def conversation(self, owner: str, response_id: str) -> list[bytes]:
        """Return the data of a response and of all before it, the first one first; [] if one of them is missing.

        Raises RequestError if they have more than MAX_CONVERSATION_BYTES.
        """

    async def get(self, owner: str, response_id: str) -> bytes | None:
        """Return the data of a response, None if there is none."""

    async def delete(self, owner: str, response_id: str) -> bool:
        """Delete a response; return False if there is none."""


@dataclass(slots=True)
class _Kept:
    stored: StoredResponse
    used_at: float


@dataclass(slots=True)
class _Shelf:
    """The responses of one owner, the least recently used one first."""

    responses: OrderedDict[str, _Kept] = field(default_factory=OrderedDict)
    num_bytes: int = 0


class MemoryStore:
    """`ResponseStore` in memory; `clock` in seconds."""

    def __init__(self, limits: StoreLimits, clock: Callable[[], float] = time.monotonic) -> None:
        self._limits = limits
        self._clock = clock
        self._shelves: dict[str, _Shelf] = {}
        self.count = 0
        self.num_bytes = 0

    async def put(self, stored: StoredResponse) -> bool:
        """See ResponseStore."""
        size = _size(stored)
        if not self._limits.count or len(stored.data) > MAX_RESPONSE_BYTES or size > self._limits.num_bytes:
            return False
        self._remove(stored.owner, stored.response_id)
        self._expire()
        while self.count >= self._limits.count:
            self._evict(lambda shelf: len(shelf.responses))
        while self.num_bytes + size > self._limits.num_bytes:
            self._evict(lambda shelf: shelf.num_bytes)
        shelf = self._shelves.setdefault(stored.owner, _Shelf())
        shelf.responses[stored.response_id] = _Kept(stored, self._clock())
        shelf.num_bytes += size
        self.count += 1
        self.num_bytes += size
        return True

    async def conversation(self, owner: str, response_id: str) -> list[bytes]:
        """See ResponseStore."""
        self._expire()
        found: dict[str, bytes] = {}
        num_bytes = 0
        while response_id:
            stored = None if response_id in found else self._use(owner, response_id)
            if stored is None:
                return []
            found[response_id] = stored.data
            num_bytes += len(stored.data)
            if num_bytes > MAX_CONVERSATION_BYTES:
                limit = f"{MAX_CONVERSATION_BYTES >> 20} MiB"
                raise RequestError(
                    f"previous_response_id: the conversation has more than {limit}: send its last items in input",
                    "previous_response_id",
                )
            response_id = stored.previous
        return list(found.values())[::-1]

    async def get(self, owner: str, response_id: str) -> bytes | None:
        """See ResponseStore."""
        self._expire()
        stored = self._use(owner, response_id)
        return None if stored is None else stored.data

    async def delete(self, owner: str, response_id: str) -> bool:
        """See ResponseStore."""
        self._expire()
        return self._remove(owner, response_id)

    def _use(self, owner: str, response_id: str) -> StoredResponse | None:
        shelf = self._shelves.get(owner)
        kept = None if shelf is None else shelf.responses.get(response_id)
        if shelf is None or kept is None:
            return None
        shelf.responses.move_to_end(response_id)
        kept.used_at = self._clock()
        return kept.stored

    def _remove(self, owner: str, response_id: str) -> bool:
        shelf = self._shelves.get(owner)
        kept = None if shelf is None else shelf.responses.pop(response_id, None)
        if shelf is None or kept is None:
            return False
        size = _size(kept.stored)
        shelf.num_bytes -= size
        self.count -= 1
        self.num_bytes -= size
        if not shelf.responses:
            del self._shelves[owner]
        return True

    def _evict(self, amount: Callable[[_Shelf], int]) -> None:
        """Remove the least recently used response of the owner that has most."""
        owner, shelf = max(self._shelves.items(), key=lambda entry: amount(entry[1]))
        self._remove(owner, next(iter(shelf.responses)))

    def _expire(self) -> None:
        oldest = self._clock() - self._limits.seconds
        for owner, shelf in list(self._shelves.items()):
            while shelf.responses and next(iter(shelf.responses.values())).used_at < oldest:
                self._remove(owner, next(iter(shelf.responses)))


ENTRY_BYTES = 1024
"""Memory of a stored response without its data."""


def _size(stored: StoredResponse) -> int:
    return len(stored.data) + ENTRY_BYTES
