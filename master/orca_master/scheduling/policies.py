"""The order in which requests are served: one sort key, for the request pool and for the holders of K/V slots.

The key of a request never changes while the request lives, and no two requests of a pool have the same key.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any

from orca_master.scheduling.request import Request

Order = Callable[[Request], Any]
"""Returns a request's sort key: the request with the smaller key is served first."""

by_arrival: Order = attrgetter("arrival")
"""First come, first served: Algorithm 1, line 20."""
