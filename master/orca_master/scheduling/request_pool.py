"""`RequestPool`: the bounded queue of requests that wait for admission, sorted by the scheduling policy.

The scheduler removes a request when it admits the request, and puts the request back when it rewinds the request.
Requests of batches come last (policies.py). They take no place from others: no bound and no number of tokens counts
them, because who submits them bounds their number.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator

from orca_master.errors import QueueFullError
from orca_master.scheduling.answers_left import AnswersLeft
from orca_master.scheduling.policies import Order, by_arrival
from orca_master.scheduling.request import Request, ServiceClass


class RequestPool:
    """Waiting requests, sorted by `order`, which begins with the service class (policies.py).

    `max_requests` and `max_tokens` bound new interactive requests, not `put_back`.
    """

    def __init__(self, max_requests: int, max_tokens: int, order: Order = by_arrival) -> None:
        self.order = order
        self.max_requests = max_requests
        self.max_tokens = max_tokens
        self.num_interactive = 0
        """Number of waiting interactive requests, the first ones of the pool."""
        self.num_tokens = 0
        """Tokens of these requests, prompts and answers of full length together."""
        self.num_known_tokens = 0
        """Those of them that are probably computed: prompts, without what a prefix cache had at their arrival,
        and the tokens that rewound requests have generated."""
        self.left = AnswersLeft()
        """Tokens that these requests may generate."""
        self._waiting: list[Request] = []
        self._num_reserved = 0
        self._num_reserved_tokens = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._waiting)

    def add(self, request: Request) -> None:
        """Add a new interactive request; raise QueueFullError at a bound.

        An empty pool accepts a request of any size: the token bound limits the queue, not a single prompt.
        """
        self._check_room(1, request.max_tokens)
        self.put_back(request)

    def reserve(self, count: int, num_tokens: int) -> None:
        """Reserve places for `count` new requests of `num_tokens` in total; raise QueueFullError at a bound."""
        self._check_room(count, num_tokens)
        self._num_reserved += count
        self._num_reserved_tokens += num_tokens

    def free(self, count: int, num_tokens: int) -> None:
        """Take a reservation back, also before its requests are put into the pool with `put_back`."""
        self._num_reserved -= count
        self._num_reserved_tokens -= num_tokens

    def put_back(self, request: Request) -> None:
        """Insert a request that was accepted before, or is of a batch, at its position by `order`; not bounded."""
        bisect.insort(self._waiting, request, key=self.order)
        if request.service_class is not ServiceClass.INTERACTIVE:
            return
        self.num_interactive += 1
        self.num_tokens += request.max_tokens
        self.num_known_tokens += request.num_expected
        self.left.add(request)

    def remove(self, request: Request) -> None:
        """Remove `request`; raise KeyError if `request` is not in the pool."""
        index = bisect.bisect_left(self._waiting, self.order(request), key=self.order)
        if index == len(self._waiting) or self._waiting[index] is not request:
            raise KeyError(request.request_id)
        del self._waiting[index]
        if request.service_class is not ServiceClass.INTERACTIVE:
            return
        self.num_interactive -= 1
        self.num_tokens -= request.max_tokens
        self.num_known_tokens -= request.num_expected
        self.left.remove(request)

    def reorder(self, order: Order) -> None:
        """Sort the waiting requests by `order` from now on."""
        self.order = order
        self._waiting.sort(key=order)

    def is_last(self, request: Request) -> bool:
        """Return True if a new interactive `request` would be served after all others that are interactive."""
        return not self.num_interactive or self.order(self._waiting[self.num_interactive - 1]) < self.order(request)

    def _check_room(self, count: int, num_tokens: int) -> None:
        waiting = self.num_interactive + self._num_reserved
        if waiting + count > self.max_requests:
            several = f", {count} more do not fit" if count > 1 else ""
            raise QueueFullError(f"{waiting} requests are waiting, the limit is {self.max_requests}{several}")
        waiting_tokens = self.num_tokens + self._num_reserved_tokens
        if (waiting or count > 1) and waiting_tokens + num_tokens > self.max_tokens:
            raise QueueFullError(
                f"waiting requests of {waiting_tokens} tokens and this one of {num_tokens} "
                f"exceed the limit of {self.max_tokens}"
            )
