"""`Admission`: refuses new requests whose expected wait for their first iteration is too long."""

from __future__ import annotations

from orca_master.engine.config import EngineConfig
from orca_master.engine.expected_wait import ExpectedWait
from orca_master.engine.request_limits import check_wait
from orca_master.scheduling.request import Request
from orca_master.scheduling.scheduler import Scheduler


class Admission:
    """Bound of the queue in seconds, `EngineConfig.max_expected_wait`; the pool has the bounds in counts."""

    def __init__(self, scheduler: Scheduler, config: EngineConfig) -> None:
        self.expected_wait = ExpectedWait(scheduler)
        self._scheduler = scheduler
        self._longest_wait = config.max_expected_wait

    def reconfigure(self, config: EngineConfig) -> None:
        """Set the bounds for requests that come from now on."""
        pool = self._scheduler.pool
        pool.max_requests, pool.max_tokens = config.max_queued_requests, config.max_queued_tokens
        self._longest_wait = config.max_expected_wait

    def check(self, request: Request) -> None:
        """Raise QueueFullError if a new `request` is expected to wait longer than the bound.

        An empty queue accepts any request, and so does a server that has measured nothing yet.
        """
        check_wait(self.expected_wait.seconds(request), self._longest_wait)
