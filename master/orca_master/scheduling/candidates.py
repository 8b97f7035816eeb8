"""`Candidates`: the requests from which a batch is selected, in the order of the policy."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from orca_master.scheduling.policies import Order
from orca_master.scheduling.request import Request, RequestState, ServiceClass


def increments(admitted: Iterable[Request]) -> Iterator[Request]:
    """Yield the admitted requests without an iteration in flight (line 20)."""
    return (request for request in admitted if request.state is RequestState.INCREMENT)


def pipelined_prompts(admitted: Sequence[Request]) -> list[Request]:
    """Return the admitted requests whose prompt has a part in flight and another one left.

    Stages that would be idle can compute that part: each stage has the keys and values of the parts before it. None
    while an answer is generated, which the part would delay.
    """
    if any(request.is_answering for request in admitted):
        return []
    return [request for request in admitted if request.num_tokens_in_flight and request.num_unscheduled]


class Candidates:
    """Iterator over the selectable requests of a pipeline in the order of the policy (lines 19 to 21).

    The first waiting request that cannot be admitted ends admission: no later request is admitted (line 25, no
    starvation). In the printed algorithm no admitted request is later than that request. After a rewind, or with
    priorities, an admitted request can be later; it still runs, because only its end frees the slots needed.

    While an interactive request waits, for whatever reason, no request of a batch is admitted.
    """

    def __init__(self, waiting: Iterable[Request], admitted: Iterable[Request], order: Order) -> None:
        self._waiting = iter(waiting)
        self._admitted = admitted
        self._order = order
        self._head = next(self._waiting, None)
        self._last_class = ServiceClass.BATCH
        """Later classes are not admitted."""
        self._num_wait_for_prefix = 0

    def pass_over(self, request: Request) -> None:
        """Leave a request waiting that keeps its place in the order; later requests of its class may be admitted."""
        self._last_class = min(self._last_class, request.service_class)
        self._end_at_class()

    def wait_for_prefix(self, request: Request, most: int) -> None:
        """Pass over a request whose prefix is being computed; after `most` of them no later request is admitted.

        Thousands of requests may wait for one prefix, and each costs a look at all of its cached blocks.
        """
        self._num_wait_for_prefix += 1
        self.pass_over(request)
        if self._num_wait_for_prefix == most:
            self.end_admission()

    def end_admission(self) -> None:
        """Skip all further waiting requests."""
        self._waiting, self._head = iter(()), None

    def __iter__(self) -> Iterator[Request]:
        order = self._order
        for request in self._admitted:
            while self._head is not None and order(self._head) < order(request):
                yield self._next_waiting(self._head)
            yield request
        while self._head is not None:
            yield self._next_waiting(self._head)

    def _next_waiting(self, request: Request) -> Request:
        self._head = next(self._waiting, None)
        self._end_at_class()
        return request

    def _end_at_class(self) -> None:
        if self._head is not None and self._head.service_class > self._last_class:
            self.end_admission()
