"""`Heartbeat`: whether a child process gives signs of life, bytes that its event loop writes to a pipe every second
(orca_protos/heartbeat.py)."""

from __future__ import annotations

import contextlib
import os

from orca_protos.process_state import is_stopped

FIRST_SECONDS = 120.0
"""Longest wait for the first byte: the start of an interpreter, or the imports of a master, on a busy machine."""
SILENT_SECONDS = 10.0
"""Longest wait for a later byte, and for a process that a signal has stopped before its first."""
CHECK_SECONDS = 2.0
"""Interval of calls of `is_silent`. If a call is much later, the calling process was suspended, too."""


class Heartbeat:
    """A pipe; `writer` is its end for the child process. `now` is the time in seconds of the monotonic clock."""

    def __init__(self, now: float) -> None:
        self._reader, self.writer = os.pipe()
        os.set_blocking(self._reader, False)
        self._beaten = False
        self._alive_at = now
        self._running_at = now
        """Time of the last check, before the first byte, at which no signal had stopped the process."""
        self._checked_at = now

    def close_writer(self) -> None:
        """Close this process's copy of the writer, after the start of the child process."""
        os.close(self.writer)

    def is_silent(self, now: float, pid: int) -> bool:
        """Return True if no byte has come from the process `pid` for too long."""
        suspended = now - self._checked_at > SILENT_SECONDS / 2
        self._checked_at = now
        with contextlib.suppress(BlockingIOError):
            if os.read(self._reader, 1 << 16):
                self._beaten, self._alive_at = True, now
        if suspended:
            self._alive_at = now
        if self._beaten:
            return now - self._alive_at > SILENT_SECONDS
        if suspended or not is_stopped(pid):
            self._running_at = now
        return now - self._running_at > SILENT_SECONDS or now - self._alive_at > FIRST_SECONDS

    def close(self) -> None:
        """Close the reader."""
        os.close(self._reader)
