"""`Demand`: whether accepted requests are unfinished, since when none is, and whether some waited for a wake-up."""

from __future__ import annotations

import asyncio
import math
import time

from orca_master.engine.live_requests import LiveRequests


class Demand:
    """Facts about `requests` by which the operator scales to zero and back. Times in seconds of the monotonic clock."""

    def __init__(self, requests: LiveRequests) -> None:
        self.exists = asyncio.Event()
        """Set while accepted requests are unfinished."""
        self._requests = requests
        self._last = time.monotonic()
        """Time of the last change while requests were unfinished, their end included."""
        self._slept_until = 0.0
        """Requests that arrived until then found no pipeline; infinite from `sleep` until a pipeline serves."""

    @property
    def idle_since(self) -> float:
        """Since when no accepted request is unfinished; infinite while one is."""
        return math.inf if self.exists.is_set() else self._last

    @property
    def has_backlog(self) -> bool:
        """Whether requests are unfinished that came after `sleep`, before a pipeline served."""
        return self._requests.oldest < self._slept_until

    def note(self, serves: bool) -> int:
        """Note that the engine has changed, and whether it serves; return the number of unfinished requests."""
        if serves:
            self._slept_until = min(self._slept_until, time.monotonic())
        number = len(self._requests)
        if number or self.exists.is_set():
            self._last = time.monotonic()
        if number:
            self.exists.set()
        else:
            self.exists.clear()
        return number

    def sleep(self) -> None:
        """Note that there are no pipelines."""
        self._slept_until = math.inf
