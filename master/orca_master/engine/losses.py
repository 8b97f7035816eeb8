"""`Losses`: counts the losses of pipelines against the requests that may have caused them.

A loss counts against the requests that were in an iteration in flight, unless the cause is known to lie outside the
computation (WorkerLostError.outside). A token begins the count anew. After LOSSES_BEFORE_ALONE losses a request runs
alone (scheduler.py); if the pipeline is lost once more, the request has failed. While losses whose cause is not known
yet could make that number full, the request is not admitted: no further pipeline is lost to it in the meantime.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from orca_master.engine.faults import WorkerLostError
from orca_master.scheduling.request import LOSSES_BEFORE_ALONE, Request
from orca_master.scheduling.scheduler import Scheduler


class Losses:
    """The lost pipelines whose cause is not known yet, each with its requests that were in flight.

    `fail` ends a request, with the cause as a text.
    """

    def __init__(self, scheduler: Scheduler, fail: Callable[[Request, str], None]) -> None:
        self._scheduler = scheduler
        self._fail = fail
        self._in_flight: dict[str, dict[Request, int]] = {}
        """By pipeline: requests, and the number of tokens that each had generated."""

    def forget(self, pipeline: str) -> None:
        """Forget an earlier pipeline of this name, which was removed before its cause was known."""
        self._hold_or_release(self._in_flight.pop(pipeline, {}))

    def keep(self, pipelines: Collection[str]) -> None:
        """Forget pipelines that have left the topology."""
        for pipeline in self._in_flight.keys() - set(pipelines):
            self.forget(pipeline)

    def note(self, pipeline: str, requests: Iterable[Request]) -> None:
        """Note that the pipeline is lost while it computed `requests`."""
        noted = self._in_flight.setdefault(pipeline, {})
        noted |= {request: len(request.generated) for request in requests}
        self._hold_or_release(noted)

    def settle(self, pipeline: str, cause: BaseException) -> bool:
        """Count the noted loss against its requests; return True if a request was alone and has failed."""
        noted = self._in_flight.pop(pipeline, {})
        has_failed = not (isinstance(cause, WorkerLostError) and cause.outside) and self._count(noted, cause)
        self._hold_or_release(noted)
        return has_failed

    def _count(self, noted: dict[Request, int], cause: BaseException) -> bool:
        for request, num_generated in noted.items():
            if request.finish_reason is not None or len(request.generated) != num_generated:
                continue  # the request has ended, or has moved on with another pipeline
            if request.runs_alone and len(noted) == 1:
                self._fail(request, str(cause))
                return True
            self._scheduler.suspect(request)
        return False

    def _hold_or_release(self, requests: Iterable[Request]) -> None:
        for request in requests:
            num_unknown = [noted.get(request) for noted in self._in_flight.values()].count(len(request.generated))
            request.awaits_cause = num_unknown > 0 and request.num_losses + num_unknown >= LOSSES_BEFORE_ALONE
