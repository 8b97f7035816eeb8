"""`LoopWatch`: whether an event loop of another thread takes turns, asked without waiting for it."""

from __future__ import annotations

import asyncio
import time

STUCK_SECONDS = 30.0
"""Longer than any one request may keep a loop; a process whose loop takes no turn for so long is to be replaced."""


class LoopWatch:
    """Watches the running loop; `stuck` may be called on any one other thread."""

    def __init__(self, seconds: float = STUCK_SECONDS) -> None:
        self._loop = asyncio.get_running_loop()
        self._seconds = seconds
        self._asked: float | None = None
        """When the loop was asked for a turn that it has not taken."""

    def stuck(self) -> bool:
        """Return True if the loop has closed, or has taken no turn since a call of `stuck` over `seconds` ago."""
        if self._asked is not None:
            return time.monotonic() - self._asked > self._seconds
        self._asked = time.monotonic()
        try:
            self._loop.call_soon_threadsafe(self._take_turn)
        except RuntimeError:
            return True
        return False

    def _take_turn(self) -> None:
        self._asked = None
