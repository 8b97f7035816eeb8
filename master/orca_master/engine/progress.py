"""`Progress`: how far the engine has come, and whether it stands still although requests wait.

A lost worker or a slow iteration ends its pipeline (supervisor.py). This check catches an engine that claims to serve
and has requests, although no iteration returns. The probes and the endpoint read it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from orca_contract.state import EngineState, ProgressReport


@dataclass(frozen=True, slots=True)
class Progress:
    """Counts, and times in seconds. `since` is of CLOCK_MONOTONIC, which all processes of a machine share.

    `since` is the latest of three moments: an iteration returned, a pipeline began to serve, the first of the
    unfinished requests came.
    """

    num_iterations: int = 0
    """Iterations that have returned."""
    num_unfinished: int = 0
    """Requests whose last token has not come."""
    num_running: int = 0
    """Requests that hold K/V slots."""
    num_waiting: int = 0
    """Requests in the queue."""
    since: float = 0.0
    stall_timeout: float = 0.0

    def stall(self, now: float) -> str:
        """Return why a serving engine is stalled at `now`, "" if it is not."""
        if not self.num_unfinished or now - self.since <= self.stall_timeout:
            return ""
        return (
            f"stalled: {self.num_unfinished} requests wait, and no iteration has returned for {now - self.since:.0f} s "
            f"(--stall-timeout {self.stall_timeout:.0f})"
        )


def progress_report(state: EngineState, serves: bool, progress: Progress) -> ProgressReport:
    """Return what `/progressz` says; `serves` is whether a pipeline claims to serve."""
    now = time.monotonic()
    return ProgressReport(
        state=state,
        stalled=serves and bool(progress.stall(now)),
        iterations=progress.num_iterations,
        unfinished_requests=progress.num_unfinished,
        running_requests=progress.num_running,
        waiting_requests=progress.num_waiting,
        seconds_since_progress=round(now - progress.since, 3) if progress.since else None,
        stall_timeout_seconds=progress.stall_timeout,
    )
