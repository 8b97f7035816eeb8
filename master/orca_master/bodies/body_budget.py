"""`BodyBudget`: limits the total memory of unvalidated request bodies in one process.

The limit of a single body times the number of connections would exceed the memory of a machine. Without a limit for
each API key, slow bodies of one key could occupy the whole budget.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator

from orca_master.errors import QueueFullError

MAX_BYTES = 256 << 20


class BodyBudget:
    """A budget of `max_bytes` for all unvalidated bodies. Used from one event loop.

    The bodies of one API key have at most half, but one of `largest` bytes fits; without keys all have the whole.
    """

    def __init__(self, max_bytes: int, largest: int = 0) -> None:
        self._max_bytes = max_bytes
        self._max_of_key = max(max_bytes // 2, largest)
        self.taken = 0
        self._taken_by: Counter[str] = Counter()

    @contextlib.contextmanager
    def body(self, owner: str = "") -> Iterator[Callable[[int], None]]:
        """Yield a function that reserves bytes for one body or raises QueueFullError; free the bytes at the end.

        `owner`: digest of the API key, "" without keys.
        """
        own = 0

        def take(num_bytes: int) -> None:
            nonlocal own
            if self.taken + num_bytes > self._max_bytes:
                raise QueueFullError(f"the limit of {self._max_bytes} bytes for all request bodies is reached: retry")
            if owner and self._taken_by[owner] + num_bytes > self._max_of_key:
                raise QueueFullError(
                    f"the limit of {self._max_of_key} bytes for all request bodies of an API key is reached: retry"
                )
            own += num_bytes
            self.taken += num_bytes
            self._taken_by[owner] += num_bytes

        try:
            yield take
        finally:
            self.taken -= own
            self._taken_by[owner] -= own
            if not self._taken_by[owner]:
                del self._taken_by[owner]
