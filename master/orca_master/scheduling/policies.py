"""The order in which requests are served: one sort key, for the request pool and for the holders of K/V slots.

The key of a request never changes while the request lives, and no two requests of a pool have the same key.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any

from orca_master.scheduling.request import Request

Order = Callable[[Request], Any]
"""Returns a request's sort key: the request with the smaller key is served first."""

by_arrival: Order = attrgetter("arrival")
"""First come, first served: Algorithm 1, line 20."""

AGEING_SECONDS = 30.0
MOST_LEVELS = 100
"""Priorities beyond this, in either direction, count as this."""


def by_priority(request: Request) -> tuple[float, int]:
    """Smaller `priority` first, with ageing: one level of priority is worth AGEING_SECONDS of waiting.

    A request of priority p takes the place of a request of priority 0 that arrived p x AGEING_SECONDS later. Two
    requests age at the same rate, so their order never changes, and no stream of urgent requests keeps a request
    waiting for ever. The order holds in every iteration: a request that holds slots pauses while more urgent requests
    fill the batch.
    """
    level = max(-MOST_LEVELS, min(request.priority, MOST_LEVELS))
    return (request.arrived_at + level * AGEING_SECONDS, request.arrival)


POLICIES: Mapping[str, Order] = {"fcfs": by_arrival, "priority": by_priority}
"""Names as in `--scheduling-policy`."""
