"""`DeviceClock`: when a device has reached a point in its work."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch


class DeviceClock:
    """Times of a device on the host's monotonic clock, in ns. On the CPU, work ends before the next begins."""

    def __init__(self, device: torch.device) -> None:
        self._asynchronous = device.type == "cuda"

    def mark(self) -> Callable[[], int]:
        """Mark the end of the work so far; return a function that waits for it and returns the time.

        Exact if a thread waits for the marks in their order, as that of the replies does.
        """
        if not self._asynchronous:
            now = time.monotonic_ns()
            return lambda: now
        reached = torch.cuda.Event()  # type: ignore[no-untyped-call]
        reached.record()

        def wait() -> int:
            reached.synchronize()
            return time.monotonic_ns()

        return wait
