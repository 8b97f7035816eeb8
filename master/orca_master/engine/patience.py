"""`Patience`: how long requests wait while no pipeline serves. It counts silence: progress begins the wait anew."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Patience:
    """Calls `on_over` after `seconds` without progress, between `begin` and `end`."""

    def __init__(self, seconds: float, on_over: Callable[[], None]) -> None:
        self._seconds = seconds
        self._on_over = on_over
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """Begin to wait, or begin anew."""
        self.end()
        self._timer = asyncio.get_running_loop().call_later(self._seconds, self._on_over)

    def note_progress(self) -> None:
        """Begin anew if a wait is under way and not over."""
        if self._timer is not None and self._timer.when() > asyncio.get_running_loop().time():
            self.begin()

    def end(self) -> None:
        """End the wait."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
