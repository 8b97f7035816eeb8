"""`BodyBudget`: limits the total memory of unvalidated request bodies in one process.

The limit of a single body times the number of connections would exceed the memory of a machine.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from orca_master.errors import QueueFullError

MAX_BYTES = 256 << 20


class BodyBudget:
    """A budget of `max_bytes` for all unvalidated bodies. Used from one event loop."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self.taken = 0

    @contextlib.contextmanager
    def body(self) -> Iterator[Callable[[int], None]]:
        """Yield a function that reserves bytes for one body or raises QueueFullError; free the bytes at the end."""
        own = 0

        def take(num_bytes: int) -> None:
            nonlocal own
            if self.taken + num_bytes > self._max_bytes:
                raise QueueFullError(f"the limit of {self._max_bytes} bytes for all request bodies is reached: retry")
            own += num_bytes
            self.taken += num_bytes

        try:
            yield take
        finally:
            self.taken -= own
