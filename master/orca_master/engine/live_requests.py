"""`LiveRequests`: the accepted requests that have not ended."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from orca_master.engine.iteration_message import check_encodes
from orca_master.engine.messages import Output, Submission
from orca_master.errors import RequestError
from orca_master.scheduling.request import FinishReason, Request
from orca_master.scheduling.scheduler import Scheduler


class LiveRequests:
    """Waiting and admitted requests of `scheduler`, by id. `deliver` receives the errors that end requests."""

    def __init__(self, scheduler: Scheduler, deliver: Callable[[list[Output]], None]) -> None:
        self._scheduler = scheduler
        self._deliver = deliver
        self._requests: dict[str, Request] = {}
        self._num_arrived = 0

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(list(self._requests.values()))

    def accept(self, submission: Submission, check: Callable[[Request], None]) -> None:
        """Add a request to the pool. Resumed requests bypass the bounds of the pool.

        Raises what `check` raises, QueueFullError, or RequestError if the request cannot be encoded.
        """
        request = Request(
            submission.request_id,
            self._num_arrived,
            submission.prompt,
            submission.max_gen_tokens,
            submission.sampling,
            submission.stop_token_ids,
            submission.priority,
            time.monotonic(),
            generated=list(submission.generated or ()),
        )
        check_encodes(request)
        check(request)
        if submission.generated is None:
            self._scheduler.pool.add(request)
        else:
            self._scheduler.pool.put_back(request)
        self._num_arrived += 1
        self._requests[request.request_id] = request

    def cancel(self, request_id: str) -> bool:
        """Cancel a request; return False if the request has ended already."""
        request = self._requests.pop(request_id, None)
        if request is not None:
            self._scheduler.cancel(request)
        return request is not None

    def finished(self, request: Request) -> None:
        """Remove a request that the scheduler has finished."""
        del self._requests[request.request_id]

    def refuse_misfits(self, check: Callable[[Request], None]) -> None:
        """Fail the waiting requests for which `check` raises RequestError."""
        for request in list(self._scheduler.pool):
            try:
                check(request)
            except RequestError as error:
                self._fail([request], str(error))

    def fail_alone(self, request: Request, cause: str) -> None:
        """Fail a live request on which workers failed while nothing else was computed."""
        message = f"request {request.request_id}: workers failed on it again and again, at last alone: {cause}"
        self._fail([request], message, FinishReason.FAULT)

    def fail_all(self, reason: str) -> None:
        """Fail all requests with `reason` as the error."""
        self._fail(list(self._requests.values()), reason)

    def _fail(self, requests: list[Request], message: str, reason: FinishReason = FinishReason.ERROR) -> None:
        self._deliver([Output(request.request_id, None, reason, message) for request in requests])
        for request in requests:
            del self._requests[request.request_id]
            self._scheduler.cancel(request, reason)
