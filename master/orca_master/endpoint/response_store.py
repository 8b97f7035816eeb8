"""`ResponseStore`: the interface of the stored responses of /v1/responses (in memory: memory_store.py).

A response belongs to the API key that made it (its digest, "" without keys) and is found only with this key. Most
responses are stored at their end; a background response is stored at its beginning, and its runner adds its events.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from orca_master.errors import RequestError

RESPONSE_ID = re.compile(r"resp_[0-9a-f]{32}", re.ASCII)
"""Ids that responses have."""
MAX_RESPONSE_BYTES = 4 << 20
"""Maximum size of one stored response and of one of its events; a larger response is not stored."""
ENDING_BYTES = 4096
"""What the status, the error and the event of a response without output add to its data."""
MAX_CONVERSATION_BYTES = 16 << 20
"""Maximum size of a response with all responses before it; a longer conversation cannot be continued."""
MAX_NUMBER = 2**53
"""Maximum sequence number of an event that a client may name."""
PAGE_BYTES = 256 << 10
"""Size of the events that are read together, unless the first one is larger."""


class Phase(enum.Enum):
    """State of a stored response; all but STORED are of background responses."""

    STORED = "stored"
    """Was stored at its end, while its client waited for it."""
    QUEUED = "queued"
    """Has no token yet."""
    IN_PROGRESS = "in_progress"
    ENDED = "ended"
    """Its data has its status."""
    CANCELLED = "cancelled"
    LOST = "lost"
    """The process that generated it has ended."""

    @property
    def is_running(self) -> bool:
        """True if the response has not ended."""
        return self in (Phase.QUEUED, Phase.IN_PROGRESS)


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


@dataclass(frozen=True, slots=True)
class FoundResponse:
    """A response that was found. The data of a background response has no output unless the phase is ENDED.

    `num_events`: 0 unless its stream is stored.
    """

    data: bytes
    phase: Phase
    num_events: int


@dataclass(frozen=True, slots=True)
class EventPage:
    """Consecutive events of a background response, and the number of all its events so far."""

    events: Sequence[bytes]
    num_events: int
    phase: Phase


class ResponseStore(Protocol):
    """Stored responses, in this process or in the master's."""

    async def put(self, stored: StoredResponse) -> bool:
        """Store a response that has ended; return False if it is too large or the store has no room."""

    async def conversation(self, owner: str, response_id: str) -> list[bytes]:
        """Return the data of a response and of all before it, the first one first; [] if one of them is missing.

        Raises RequestError if they have more than MAX_CONVERSATION_BYTES, or if the response has not ended.
        """

    async def get(self, owner: str, response_id: str) -> FoundResponse | None:
        """Return a response, None if there is none."""

    async def delete(self, owner: str, response_id: str) -> bool:
        """Delete a response, and stop it if it runs; return False if there is none."""

    async def begin(self, stored: StoredResponse, events: Sequence[bytes], stop: Callable[[], None]) -> None:
        """Store a background response as QUEUED, with the first events of its stream; () stores no events.

        `stop` is called once if another than its runner ends it. Raises RequestError if the response is too large, and
        QueueFullError if other background responses leave no room.
        """

    async def advance(self, owner: str, response_id: str, events: Sequence[bytes]) -> bool:
        """Add events of a background response, which is IN_PROGRESS then; return False if they have no room.

        They have none if they have more than MAX_RESPONSE_BYTES together. Nothing is done if the response does not run
        any more.
        """

    async def end(self, owner: str, response_id: str, data: bytes, events: Sequence[bytes]) -> bool:
        """Replace the data of a background response, and add its last event, if any; return False if they have no room.

        There is room for the data and the event of a response without output. Nothing is done if the response does not
        run any more.
        """

    async def cancel(self, owner: str, response_id: str) -> None:
        """Stop a background response if it runs."""

    async def events(self, owner: str, response_id: str, after: int) -> EventPage | None:
        """Return events with numbers above `after`; None if the response is not stored.

        Waits while there are none and the response runs.
        """


def fit(*parts: bytes) -> bool:
    """Return True if none of the parts is larger than MAX_RESPONSE_BYTES."""
    return all(len(part) <= MAX_RESPONSE_BYTES for part in parts)


def check_beginning(stored: StoredResponse, events: Sequence[bytes]) -> None:
    """Raise RequestError if a background response is too large before its first token.

    It must be able to end: with an error it is larger by up to ENDING_BYTES.
    """
    if max(map(len, (stored.data, *events))) + ENDING_BYTES > MAX_RESPONSE_BYTES:
        raise RequestError(
            f"background: this request takes more than the {MAX_RESPONSE_BYTES >> 20} MiB of a stored response: "
            "shorten it, or leave background out",
            "background",
        )
