"""`InFlight`: the iterations that a pipeline has not answered yet, and how long the oldest of them may take."""

from __future__ import annotations

import asyncio
from collections import deque

from orca_master.engine.faults import WorkerLostError
from orca_master.scheduling.scheduler import Batch


class InFlight:
    """Iterations oldest first; make it on a running loop. Timeouts in seconds, for the oldest from now on."""

    def __init__(self) -> None:
        self._iterations: deque[tuple[int, Batch]] = deque()
        self._deadline: asyncio.TimerHandle | None = None
        self.stalled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the oldest took too long."""

    def __len__(self) -> int:
        return len(self._iterations)

    @property
    def newest(self) -> Batch:
        """The batch that was sent last."""
        return self._iterations[-1][1]

    def add(self, sequence: int, batch: Batch, timeout: float) -> None:
        """An iteration was sent."""
        self._iterations.append((sequence, batch))
        if self._deadline is None:
            self._arm(timeout)

    def take(self, sequence: int, timeout: float) -> Batch:
        """Returns the oldest, whose result has come; raises WorkerLostError if it is another's result."""
        due, batch = self._iterations.popleft()
        if sequence != due:
            raise WorkerLostError(f"result {sequence} came where {due} was due")
        self._arm(timeout)
        return batch

    def stop(self) -> None:
        """No deadline counts any more."""
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _arm(self, timeout: float) -> None:
        self.stop()
        if self._iterations:
            self._deadline = asyncio.get_running_loop().call_later(timeout, self._stall)

    def _stall(self) -> None:
        if not self.stalled.done():
            self.stalled.set_result(None)
