"""`Shelves`: the responses that are in memory, by owner, and the limits of their number, bytes and age.

Room is made by removing the least recently used response of the owner that has most, so that no client can push out the
responses of others. Background responses that run are not removed. Those of one owner have at most half of the number
and of the bytes; new ones begin while those of all owners have at most three quarters, so that the others can grow.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from orca_master.endpoint.response_store import Phase, StoredResponse, StoreLimits

ENTRY_BYTES = 1024
"""Memory of a stored response without its data."""
EVENT_BYTES = 64
"""Memory of a stored event without its data."""
Watcher = Callable[[str], None]
"""Is called with the id of a response that has changed."""


def do_nothing() -> None:
    """Stop a response that does not run."""


@dataclass(slots=True)
class Kept:
    """One response. `stop`, `events`: see ResponseStore.begin."""

    stored: StoredResponse
    num_bytes: int
    phase: Phase = Phase.STORED
    events: list[bytes] = field(default_factory=list)
    stop: Callable[[], None] = do_nothing
    watchers: set[Watcher] = field(default_factory=set)
    """Are called once, at the next change."""
    used_at: float = 0.0

    def notify(self) -> None:
        """Call the watchers."""
        watchers, self.watchers = self.watchers, set()
        for watcher in watchers:
            watcher(self.stored.response_id)


@dataclass(slots=True)
class Shelf:
    """The responses of one owner: those that have ended, the least recently used one first, and those that run."""

    responses: OrderedDict[str, Kept] = field(default_factory=OrderedDict)
    num_bytes: int = 0
    running: dict[str, Kept] = field(default_factory=dict)
    running_bytes: int = 0

    def of(self, kept: Kept) -> dict[str, Kept]:
        """Return the responses among which a response is."""
        return self.running if kept.phase.is_running else self.responses


class Shelves:
    """All responses. `clock` in seconds."""

    def __init__(self, limits: StoreLimits, clock: Callable[[], float]) -> None:
        self.limits = limits
        self.by_owner: dict[str, Shelf] = {}
        self.count = 0
        self.num_bytes = 0
        self._clock = clock
        self._num_running = 0
        self._running_bytes = 0

    def find(self, owner: str, response_id: str) -> Kept | None:
        """Return a response and note its use."""
        shelf = self.by_owner.get(owner)
        if shelf is None:
            return None
        if (kept := shelf.responses.get(response_id)) is None:
            return shelf.running.get(response_id)
        shelf.responses.move_to_end(response_id)
        kept.used_at = self._clock()
        return kept

    def running(self, owner: str, response_id: str) -> Kept | None:
        """Return a background response that runs."""
        shelf = self.by_owner.get(owner)
        return None if shelf is None else shelf.running.get(response_id)

    def add(self, kept: Kept) -> None:
        """Add a response, the last used one of its owner, and notify its watchers."""
        shelf = self.by_owner.setdefault(kept.stored.owner, Shelf())
        shelf.of(kept)[kept.stored.response_id] = kept
        self._account(shelf, kept, 1)
        kept.used_at = self._clock()
        kept.notify()

    def take(self, kept: Kept) -> None:
        """Take a response out, to remove it or to add it in another state."""
        shelf = self.by_owner[kept.stored.owner]
        del shelf.of(kept)[kept.stored.response_id]
        self._account(shelf, kept, -1)
        if not shelf.responses and not shelf.running:
            del self.by_owner[kept.stored.owner]

    def remove(self, owner: str, response_id: str) -> bool:
        """Remove a response, and stop it if it runs; return False if there is none."""
        shelf = self.by_owner.get(owner, Shelf())
        kept = shelf.running.get(response_id) or shelf.responses.get(response_id)
        if kept is None:
            return False
        self.take(kept)
        if kept.phase.is_running:
            kept.stop()
        kept.notify()
        return True

    def may_begin(self, owner: str, num_bytes: int) -> bool:
        """Return True if the limits of running background responses permit another one of this owner."""
        shelf = self.by_owner.get(owner, Shelf())
        most = self.limits.count
        return (
            self.may_grow(owner, num_bytes)
            and len(shelf.running) < max(1, most // 2)
            and self._num_running < max(1, 3 * most // 4)
            and self._running_bytes + num_bytes <= 3 * self.limits.num_bytes // 4
        )

    def may_grow(self, owner: str, num_bytes: int) -> bool:
        """Return True if the running background responses of this owner may have so many bytes more."""
        return self.by_owner.get(owner, Shelf()).running_bytes + num_bytes <= self.limits.num_bytes // 2

    def make_room(self, count: int, num_bytes: int) -> bool:
        """Remove responses until this is free; return False, and remove none, if running ones leave no such room."""
        most, most_bytes = self.limits.count - count, self.limits.num_bytes - num_bytes
        if self._num_running > most or self._running_bytes > most_bytes:
            return False
        self.expire()
        while self.count > most:
            self._evict(lambda shelf: len(shelf.responses) + len(shelf.running))
        while self.num_bytes > most_bytes:
            self._evict(lambda shelf: shelf.num_bytes + shelf.running_bytes)
        return True

    def expire(self) -> None:
        """Remove the responses that have not been used for too long."""
        oldest = self._clock() - self.limits.seconds
        for owner, shelf in list(self.by_owner.items()):
            while shelf.responses and next(iter(shelf.responses.values())).used_at < oldest:
                self.remove(owner, next(iter(shelf.responses)))

    def _evict(self, amount: Callable[[Shelf], int]) -> None:
        evictable = ((owner, shelf) for owner, shelf in self.by_owner.items() if shelf.responses)
        owner, shelf = max(evictable, key=lambda entry: amount(entry[1]))
        self.remove(owner, next(iter(shelf.responses)))

    def _account(self, shelf: Shelf, kept: Kept, sign: int) -> None:
        size = sign * kept.num_bytes
        self.count += sign
        self.num_bytes += size
        if kept.phase.is_running:
            shelf.running_bytes += size
            self._num_running += sign
            self._running_bytes += size
        else:
            shelf.num_bytes += size


def size_of(events: Sequence[bytes]) -> int:
    """Return the memory of stored events in bytes."""
    return sum(map(len, events)) + EVENT_BYTES * len(events)
