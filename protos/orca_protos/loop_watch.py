"""`LoopWatch`: checks, without blocking, whether an event loop of another thread makes progress."""

from __future__ import annotations

import asyncio
import time

STUCK_SECONDS = 30.0
"""Longer than any request may block a loop; a process whose loop is blocked for longer must be replaced."""


class LoopWatch:
    """Watches the running loop; `stuck` may be called on any one other thread."""

    def __init__(self, seconds: float = STUCK_SECONDS) -> None:
        self._loop = asyncio.get_running_loop()
        self._seconds = seconds
        self._scheduled: float | None = None
        """When the callback was scheduled that the loop has not run yet."""

    def stuck(self) -> bool:
        """Return True if the loop is closed, or has not run a callback that is more than `seconds` old."""
        if self._scheduled is not None:
            return time.monotonic() - self._scheduled > self._seconds
        self._scheduled = time.monotonic()
        try:
            self._loop.call_soon_threadsafe(self._mark_run)
        except RuntimeError:
            return True
        return False

    def _mark_run(self) -> None:
        self._scheduled = None
