"""Scheduling policies: sort keys for the request pool and for the requests that hold K/V slots.

The key of a request is constant, and no two requests of a pool have the same key. Each key begins with the service
class: every interactive request precedes every request of a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any

from orca_master.scheduling.request import Request, ServiceClass

Order = Callable[[Request], Any]
"""Returns a request's sort key: the request with the smaller key is served first."""

by_arrival: Order = attrgetter("service_class", "arrival")
"""First come, first served within a service class: Algorithm 1, line 20."""

AGEING_SECONDS = 30.0
MOST_LEVELS = 100
"""Priorities are clamped to [-MOST_LEVELS, MOST_LEVELS]."""


def by_priority(request: Request) -> tuple[ServiceClass, float, int]:
    """Return the key of the policy `priority`: smaller `priority` first, AGEING_SECONDS of waiting per level.

    Within a service class, a request of priority p ranks like a request of priority 0 that arrived p x AGEING_SECONDS
    later. All requests age at the same rate, so the order of two requests never changes, and urgent requests cannot
    starve a request of their class. The order holds in every iteration: a request that holds slots pauses while more
    urgent requests fill the batch.
    """
    level = max(-MOST_LEVELS, min(request.priority, MOST_LEVELS))
    return (request.service_class, request.arrived_at + level * AGEING_SECONDS, request.arrival)


POLICIES: Mapping[str, Order] = {"fcfs": by_arrival, "priority": by_priority}
"""Values of `--scheduling-policy` → sort key."""
