"""The progress deadline of an OrcaDeployment: what counts as progress, and when the time is over. Pure.

`progressing` is the condition Progressing of the previous status, {} without one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any

from orca_contract.reasons import Reason


def moves_on(progressing: Mapping[str, Any], generation: int, ready: int, ready_before: int) -> bool:
    """Whether the spec was edited, or more pipelines of its revision are ready than before.

    By the pods, not by the master's report, which may be missing in a pass.
    """
    return progressing.get("observedGeneration") != generation or ready > ready_before


def count_ready(pipelines: Iterable[Mapping[str, Any]], revision: str | None) -> int:
    """Return how many of a status' entries are of a revision and have ready pods only."""
    ready = 0
    for pipeline in pipelines:
        workers, _, size = pipeline["readyWorkers"].partition("/")
        ready += pipeline["revision"] == revision and workers == size
    return ready


def is_overdue(progressing: Mapping[str, Any], deadline_seconds: int, now: datetime) -> bool:
    """Whether there was no progress for longer than the deadline."""
    if progressing["status"] == "False":
        return bool(progressing["reason"] == Reason.PROGRESS_DEADLINE_EXCEEDED.value)
    since = datetime.fromisoformat(progressing["lastTransitionTime"])
    return now - since > timedelta(seconds=deadline_seconds)
