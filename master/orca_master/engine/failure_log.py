"""`FailureLog`: the last failure of a pipeline, for its report, and which failed formations are logged."""

from __future__ import annotations

import time

from orca_contract.reasons import Reason
from orca_contract.state import FailureReport

from orca_master.engine.faults import WorkerLostError
from orca_master.errors import ConfigurationError

REPEAT_SECONDS = 60.0
"""Between two lines of a pipeline's log about the same error: a formation may fail each second for hours."""


class FailureLog:
    """The last failure: time of the first failure of a series, message of the latest. None before the first."""

    def __init__(self) -> None:
        self.last: FailureReport | None = None
        self._logged = ("", float("-inf"))
        """Message and time (monotonic, in seconds) of the last line about a failed formation."""

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

    def is_news(self, error: Exception) -> bool:
        """Return whether a failed formation is to be logged, which the caller does then."""
        message, at = self._logged
        if message == str(error) and time.monotonic() - at < REPEAT_SECONDS:
            return False
        self._logged = (str(error), time.monotonic())
        return True

    @property
    def seconds(self) -> float:
        """Time since the first failure of the series under way, 0 without one."""
        ongoing = self.last is not None and self.last.recovery_seconds is None
        return time.time() - self.last.at if self.last is not None and ongoing else 0.0

    def note_recovery(self) -> None:
        """End the series of failures, if one is under way: the pipeline serves."""
        self._logged = ("", float("-inf"))
        if self.last is not None:
            self.last = self.last.model_copy(update={"recovery_seconds": time.time() - self.last.at})
