"""`Progress`: progress counters of the engine, and the check for a stalled engine.

Lost workers and slow iterations end their pipeline (supervisor.py). This check detects an engine in the state serving
that has unfinished requests but returns no iteration. The probes and the endpoint use it.
"""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orca_contract.state import EngineState, ProgressReport

if TYPE_CHECKING:  # API processes have no scheduler
    from orca_master.scheduling.scheduler import Scheduler


RETURN_SECONDS = 60.0
"""Added to the recovery timeout, which begins with the first failed attempt to form a pipeline again."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Counts, and times in seconds. `since` uses CLOCK_MONOTONIC, which all processes of a machine share.

    `since` is the latest of three times: last returned iteration, last pipeline start, arrival of the first unfinished
    request.
    """

    num_iterations: int = 0
    """Iterations that have returned."""
    num_unfinished: int = 0
    """Requests that the engine has, whose last token has not been delivered."""
    num_running: int = 0
    """Requests that hold K/V slots."""
    num_waiting: int = 0
    """Interactive requests in the queue."""
    since: float = 0.0
    stall_timeout: float = 0.0

    def stall(self, now: float) -> str:
        """Return the reason if a serving engine is stalled at `now`, else ""."""
        if not self.num_unfinished or now - self.since <= self.stall_timeout:
            return ""
        return (
            f"stalled: {self.num_unfinished} requests wait, and no iteration has returned for {now - self.since:.0f} s "
            f"(the bound is {self.stall_timeout:.0f} s: --stall-timeout)"
        )


def stall_bound(scheduler: Scheduler, usual: float, recovery_timeout: float) -> float:
    """Return the seconds without an iteration after which the engine counts as stalled, by default `usual`.

    While the next requests wait for a lost pipeline with more slots, nothing can be computed: then the bound is the
    time for which they wait. The requests of batches wait behind interactive ones.
    """
    pool, ledgers = scheduler.pool, scheduler.ledgers
    if scheduler.num_running or not len(pool) or not ledgers:
        return usual
    nearest = next(iter(pool)).service_class  # by which every order begins
    following = itertools.takewhile(lambda request: request.service_class == nearest, pool)
    if any(ledger.can_finish(request) for request in following for ledger in ledgers):
        return usual
    return max(usual, recovery_timeout + RETURN_SECONDS)


def progress_report(state: EngineState, serves: bool, progress: Progress) -> ProgressReport:
    """Return the body of `/progressz`; `serves` is True if a pipeline is in the state Serving."""
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
