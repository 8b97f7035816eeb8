"""`BodyBudget`: the memory that the bodies of all requests under way may take in one process together.

The bound of one body times the connections of a port is more than a machine has.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from orca_master.errors import QueueFullError

MAX_BYTES = 256 << 20


class BodyBudget:
    """`max_bytes` for all bodies that have not been checked yet. Belongs to one event loop."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self.taken = 0

    @contextlib.contextmanager
    def body(self) -> Iterator[Callable[[int], None]]:
        """Yield a function that reserves bytes for one body, or raise QueueFullError; free them at the end."""
        own = 0

        def take(num_bytes: int) -> None:
            nonlocal own
            if self.taken + num_bytes > self._max_bytes:
                raise QueueFullError(f"the bodies of all requests may take {self._max_bytes} bytes together: try again")
            own += num_bytes
            self.taken += num_bytes

        try:
            yield take
        finally:
            self.taken -= own
