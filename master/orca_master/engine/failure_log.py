"""`FailureLog`: the last failure of a pipeline, for its report."""

from __future__ import annotations

import time

from orca_contract.reasons import Reason
from orca_contract.state import FailureReport

from orca_master.engine.faults import WorkerLostError
from orca_master.errors import ConfigurationError


class FailureLog:
    """The last failure: time of the first failure of a series, message of the latest. None before the first."""

    def __init__(self) -> None:
        self.last: FailureReport | None = None

    def note(self, error: ConfigurationError | WorkerLostError, reason: Reason) -> None:
        """Record a failure; `reason` applies if `error` has none."""
        worker = ""
        if isinstance(error, WorkerLostError):
            reason, worker = error.reason or reason, error.worker
        else:
            reason = Reason.INVALID_SPEC
        ongoing = self.last is not None and self.last.recovery_seconds is None
        at = self.last.at if self.last is not None and ongoing else time.time()
        self.last = FailureReport(at=at, reason=reason, worker=worker, message=str(error), recovery_seconds=None)

    @property
    def seconds(self) -> float:
        """Time since the first failure of the series under way, 0 without one."""
        ongoing = self.last is not None and self.last.recovery_seconds is None
        return time.time() - self.last.at if self.last is not None and ongoing else 0.0

    def note_recovery(self) -> None:
        """End the series of failures, if one is under way: the pipeline serves."""
        if self.last is not None:
            self.last = self.last.model_copy(update={"recovery_seconds": time.time() - self.last.at})
