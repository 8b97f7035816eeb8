"""`RequestPool`: the requests that wait for admission, in the order of the scheduling policy, within bounds.

The scheduler moves a request out of the pool when it admits the request, and back when it rewinds the request, which
takes its old place in the order.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator

from orca_master.errors import QueueFullError
from orca_master.scheduling.policies import Order, by_arrival
from orca_master.scheduling.request import Request


class RequestPool:
    """Waiting requests, sorted by `order`. `max_requests` and `max_tokens` bound `add`, not `put_back`."""

    def __init__(self, max_requests: int, max_tokens: int, order: Order = by_arrival) -> None:
        self.order = order
        self.max_requests = max_requests
        self.max_tokens = max_tokens
        self._waiting: list[Request] = []
        self._num_tokens = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._waiting)

    def add(self, request: Request) -> None:
        """Take a new request; raise QueueFullError at a bound.

        A request is let in when none waits, whatever its size: the token bound shapes a queue, it
        does not forbid a long prompt.
        """
        if len(self._waiting) >= self.max_requests:
            raise QueueFullError(f"{len(self._waiting)} requests are waiting, the limit is {self.max_requests}")
        if self._waiting and self._num_tokens + request.max_tokens > self.max_tokens:
            raise QueueFullError(
                f"waiting requests of {self._num_tokens} tokens and this one of {request.max_tokens} "
                f"exceed the limit of {self.max_tokens}"
            )
        self.put_back(request)

    def put_back(self, request: Request) -> None:
        """Take a request that was accepted before, in its place by `order`; never refused."""
        bisect.insort(self._waiting, request, key=self.order)
        self._num_tokens += request.max_tokens

    def remove(self, request: Request) -> None:
        """Take `request` out; raise KeyError if it does not wait here."""
        index = bisect.bisect_left(self._waiting, self.order(request), key=self.order)
        if index == len(self._waiting) or self._waiting[index] is not request:
            raise KeyError(request.request_id)
        del self._waiting[index]
        self._num_tokens -= request.max_tokens
