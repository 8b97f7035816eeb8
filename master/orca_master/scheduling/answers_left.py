"""`AnswersLeft`: how many tokens a set of requests may still generate, without a list of the requests. Pure.

Requests are grouped by the power of two below their number of tokens left, so that a sum over thousands of requests
takes at most one step per bit.
"""

from __future__ import annotations

from collections.abc import Iterable

from orca_master.scheduling.request import Request


class AnswersLeft:
    """Counts and sums of `Request.num_left` of `requests`, in groups of similar requests."""

    def __init__(self, requests: Iterable[Request] = ()) -> None:
        self._groups: dict[int, tuple[int, int]] = {}
        for request in requests:
            self.add(request)

    def add(self, request: Request) -> None:
        """Count a request, which generates nothing while it is counted."""
        self._change(request.num_left, 1)

    def remove(self, request: Request) -> None:
        """Remove a request that was counted."""
        self._change(request.num_left, -1)

    def without(self, requests: Iterable[Request]) -> tuple[tuple[int, int], ...]:
        """Return the number of requests and the sum of their tokens left of each group, without `requests`."""
        rest = AnswersLeft()
        rest._groups = dict(self._groups)
        for request in requests:
            rest.remove(request)
        return tuple(rest._groups.values())

    def _change(self, num_left: int, by: int) -> None:
        key = num_left.bit_length()
        count, total = self._groups.get(key, (0, 0))
        if count + by:
            self._groups[key] = (count + by, total + by * num_left)
        else:
            del self._groups[key]
