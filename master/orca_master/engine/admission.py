"""`Admission`: refuses new requests that would probably wait too long for their first token."""

from __future__ import annotations

from orca_master.engine.config import EngineConfig
from orca_master.engine.expected_wait import ExpectedWait
from orca_master.engine.request_limits import check_wait
from orca_master.engine.wait_margin import WaitMargin
from orca_master.scheduling.request import Request
from orca_master.scheduling.scheduler import Scheduler


class Admission:
    """Bound of the queue in seconds, `EngineConfig.max_expected_wait`; the pool has the bounds in counts."""

    def __init__(self, scheduler: Scheduler, config: EngineConfig) -> None:
        self.expected_wait = ExpectedWait(scheduler)
        self._margin = WaitMargin()
        self._scheduler = scheduler
        self._longest_wait = config.max_expected_wait

    def reconfigure(self, config: EngineConfig) -> None:
        """Set the bounds for requests that come from now on."""
        pool = self._scheduler.pool
        pool.max_requests, pool.max_tokens = config.max_queued_requests, config.max_queued_tokens
        self._longest_wait = config.max_expected_wait

    @property
    def seconds(self) -> float:
        """The expected wait behind all waiting requests, with the margin; 0 while none waits."""
        return self._with_margin(self.expected_wait.seconds())

    def check(self, request: Request) -> None:
        """Raise QueueFullError if a new `request` is expected to wait longer than the bound.

        An empty queue accepts any request, and so does a server that has measured nothing yet.
        """
        expected = self.expected_wait.seconds(request)
        check_wait(self._with_margin(expected), self._longest_wait)
        request.expected_wait, request.expected_under = expected, self._scheduler.num_pipeline_changes

    def note_first_token(self, request: Request, now: float) -> None:
        """Compare the wait of a request with what was expected, unless pipelines came or went meanwhile."""
        if request.expected_wait and request.expected_under == self._scheduler.num_pipeline_changes:
            self._margin.note(now - request.arrived_at - request.expected_wait, self._longest_wait)

    def _with_margin(self, expected: float) -> float:
        return expected + self._margin.seconds(self._longest_wait) if expected else 0.0
