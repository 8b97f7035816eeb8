"""`Activity`: counts pieces of work that run, so that a drain can wait for the end of all."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator


class Activity:
    """`idle` is set while nothing runs."""

    def __init__(self) -> None:
        self.idle = asyncio.Event()
        self.idle.set()
        self._num_running = 0

    @contextlib.contextmanager
    def one(self) -> Iterator[None]:
        """Count one piece of work as running for the length of the block."""
        self._num_running += 1
        self.idle.clear()
        try:
            yield
        finally:
            self._num_running -= 1
            if not self._num_running:
                self.idle.set()
