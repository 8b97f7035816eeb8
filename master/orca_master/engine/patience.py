"""`Patience`: how long requests wait while no pipeline serves. It counts silence: progress begins the wait anew.

Without pipelines (`rest`) the wait lasts while there are requests; the first of them wakes the deployment up. The
expected time of a wake-up refuses no request, because pods may have to start; a wake-up that is over refuses requests
until a pipeline serves, as a recovery does. A wake-up is no recovery: its time says nothing about the next loss.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from dataclasses import replace

from orca_master.engine.recovery import Recovery


class Patience:
    """Calls `on_over` after `seconds` without progress, from `begin` to `end`.

    `longest_wait`: see Recovery. The time from the first progress to the first `end` is the engine's start; before it
    the workers may wait for a node or an image.
    """

    def __init__(self, seconds: float, longest_wait: float, on_over: Callable[[], None]) -> None:
        self.recovery = Recovery(longest_wait=longest_wait)
        """The current recovery, or the last one."""
        self._seconds = seconds
        self._longest_wait = longest_wait
        self._on_over = on_over
        self._begun: float | None = None
        """Begin of the start or recovery under way; None before the first progress, from a rest to the
        end of the wake-up, and while a pipeline serves."""
        self._num_ended = 0
        """Starts and recoveries that have ended."""
        self._silent_since = 0.0
        """Time of the last progress, on the clock of the event loop."""
        self._timer: asyncio.TimerHandle | None = None
        self._rests = False
        """True from `rest` to `wake`: there are no pipelines."""

    @property
    def is_over(self) -> bool:
        """True from the call of `on_over` to the next `begin`: nothing bounds a request's wait."""
        return self._timer is None and not self._rests

    def begin(self) -> None:
        """Begin to wait for a lost pipeline."""
        self._rests, self._begun = False, time.monotonic()
        self.recovery = Recovery(self._begun, self.recovery.usual, self._longest_wait)
        self._start()

    def rest(self) -> None:
        """Wait for new pipelines: there are none."""
        self._rests, self._begun = True, None
        self._num_ended = max(1, self._num_ended)  # the engine has started: what comes is not its start
        self._stop_timer()
        self.recovery = Recovery(math.inf, self.recovery.usual, math.inf)  # it begins with the first request

    def wake(self) -> None:
        """Wait for pipelines that have been added, if there were none."""
        if self._rests:
            self._rests = False
            self._begin_wake_up()

    def note_requests(self, number: int) -> None:
        """Let the first request begin the wait, and the end of the last one end it, while there are no pipelines."""
        if not self._rests:
            return
        if not number:
            self._stop_timer()
        elif self._timer is None:
            self._begin_wake_up()

    def note_progress(self) -> None:
        """Wait anew if a wait is under way and not over."""
        if self._begun is None and self._num_ended == 0:
            self._begun = time.monotonic()
        if self._timer is not None:
            self._start()

    def end(self) -> None:
        """End the wait, if one is under way: a pipeline serves."""
        self._rests = False
        self._stop_timer()
        if self._begun is not None:
            taken, usual = time.monotonic() - self._begun, self.recovery.usual
            # The first recovery replaces the start, which says less.
            self.recovery = replace(self.recovery, usual=(usual + taken) / 2 if self._num_ended > 1 else taken)
            self._begun = None
            self._num_ended += 1

    def set_seconds(self, seconds: float) -> None:
        """Change the longest wait without progress, also of a wait that is under way and not over."""
        self._seconds = seconds
        if self._timer is not None:
            self._set_timer()

    def _begin_wake_up(self) -> None:
        self.recovery = replace(self.recovery, since=time.monotonic())
        self._start()

    def _start(self) -> None:
        self._silent_since = asyncio.get_running_loop().time()
        self._set_timer()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _set_timer(self) -> None:
        self._stop_timer()
        self._timer = asyncio.get_running_loop().call_at(self._silent_since + self._seconds, self._end_wait)

    def _end_wait(self) -> None:
        self._timer = None
        if not self._rests:
            self.recovery = replace(self.recovery, longest_wait=0.0)
        self._on_over()
