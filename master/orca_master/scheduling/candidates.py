"""What a batch is selected from: the requests in the order of the policy, and the room that is left in the batch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from orca_master.scheduling.policies import Order
from orca_master.scheduling.request import Request, RequestState


@dataclass(slots=True)
class Room:
    """Free K/V blocks and remaining token budget (None: unlimited) of the batch being built."""

    num_blocks: int
    num_tokens: int | None
    preempted: list[Request] = field(default_factory=list)

    def tokens_for(self, request: Request) -> int:
        """Return how many tokens of `request` fit into the batch."""
        left = request.num_uncomputed
        return left if self.num_tokens is None else min(left, self.num_tokens)

    def take(self, num_blocks: int, num_tokens: int) -> None:
        """Subtract the blocks and tokens of a request."""
        self.num_blocks -= num_blocks
        if self.num_tokens is not None:
            self.num_tokens -= num_tokens


class Candidates:
    """Iterator over the selectable requests of a pipeline in the order of the policy (lines 19 to 21).

    The first waiting request that cannot be admitted ends admission: no later request is admitted (line 25, no
    starvation). In the printed algorithm no admitted request is later than that request. After a rewind, or with
    priorities, an admitted request can be later; it still runs, because only its end frees the slots needed.
    """

    def __init__(self, waiting: Iterable[Request], admitted: Sequence[Request], order: Order) -> None:
        self._waiting = iter(waiting)
        self._admitted = admitted
        self._order = order
        self._head = next(self._waiting, None)

    def end_admission(self) -> None:
        """Skip all further waiting requests."""
        self._waiting, self._head = iter(()), None

    def __iter__(self) -> Iterator[Request]:
        order = self._order
        for request in self._admitted:
            while self._head is not None and order(self._head) < order(request):
                yield self._next_waiting(self._head)
            if request.state is RequestState.INCREMENT:
                yield request
        while self._head is not None:
            yield self._next_waiting(self._head)

    def _next_waiting(self, request: Request) -> Request:
        self._head = next(self._waiting, None)
        return request
