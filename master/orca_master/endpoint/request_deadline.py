"""`TimeLimit`: until when a request must have ended, from its arrival on: texts, queue and answer together.

A client bounds its request with the header X-Request-Deadline, the server every request with --request-timeout.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass

from fastapi import Request

from orca_master.errors import RequestError, RequestTimeoutError

ARRIVAL = "orca.arrival"
"""Key of a request's scope: see `arrival_of`."""
HEADER = "X-Request-Deadline"
MAX_SECONDS = 86400.0


@dataclass(frozen=True, slots=True)
class TimeLimit:
    """`arrived`: in seconds of the monotonic clock; `timeout`: in seconds from then on, None for no limit."""

    arrived: float
    timeout: float | None

    @property
    def error(self) -> RequestTimeoutError:
        """The error of a request that has not ended in time."""
        return RequestTimeoutError(f"not finished within {self.timeout or 0.0:.6g} s")

    @contextlib.asynccontextmanager
    async def applied(self) -> AsyncIterator[None]:
        """Cancel the block at the end of the time, and raise RequestTimeoutError; at once if the time is over."""
        left = None if self.timeout is None else self.arrived + self.timeout - time.monotonic()
        if left is not None and left <= 0:
            raise self.error
        try:
            async with asyncio.timeout(left):
                yield
        except TimeoutError as error:
            raise self.error from error


def arrival_of(request: Request) -> float:
    """Return when the head of a request arrived, in seconds of the monotonic clock; now for calls of batches."""
    return float(request.scope.get(ARRIVAL, time.monotonic()))


def time_limit(request: Request, server_timeout: float | None) -> TimeLimit:
    """Return the limit of a request, the smaller of the client's timeout and the server's; raise RequestError."""
    timeouts = (server_timeout, requested_timeout(request.headers))
    return TimeLimit(arrival_of(request), min((seconds for seconds in timeouts if seconds is not None), default=None))


def requested_timeout(headers: Mapping[str, str]) -> float | None:
    """Return the timeout in seconds, None without the header; raise RequestError."""
    text = headers.get(HEADER)
    if text is None:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.0 < seconds <= MAX_SECONDS:
        raise RequestError(f"{HEADER}: {text[:40]!r} is not a number of seconds above 0, to {MAX_SECONDS:.0f}", HEADER)
    return seconds
