"""Bounds of an HTTP port, and the pure arithmetic behind them.

http_connection.py applies them to one connection, http_listener.py to all connections of a port, and
orca_master/endpoint/body_limits.py to the bodies of requests.
"""

from __future__ import annotations

import math
import os
import resource
import time
from dataclasses import dataclass, replace

MIN_BYTES_PER_SECOND = 1024
"""A peer that sends or reads more slowly for a whole time-out is given up."""
RESERVED_DESCRIPTORS = 128
"""Kept free for the other ports of the process, its channels to workers, and files."""


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """Bounds of one listening port. Sizes in bytes, times in seconds.

    `max_header_bytes` bounds the URL as well. `max_unread_bytes` is per stream, of generated text that the client has
    not read.

    A new connection at `max_connections` ends those that have waited for a request, or are in their TLS handshake, for
    `idle_seconds_when_full`; without any, the oldest that is older than `busy_seconds_when_full`.
    """

    max_header_bytes: int = 64 << 10
    max_header_count: int = 256
    max_body_bytes: int = 32 << 20
    max_connections: int = 8192
    max_requests_per_connection: int = 1_000_000
    header_timeout: float = 10.0
    body_timeout: float = 10.0
    keep_alive_timeout: float = 5.0
    write_timeout: float = 30.0
    max_unread_bytes: int = 8 << 20
    handshake_timeout: float = 2.0
    idle_seconds_when_full: float = 1.0
    busy_seconds_when_full: float = math.inf


ADMIN_LIMITS = HttpLimits(max_body_bytes=1 << 20, max_connections=32, idle_seconds_when_full=0.1)
"""For the operator's port. Only those with a certificate get past the handshake, so that answers are not cut short."""
PROBE_LIMITS = replace(
    ADMIN_LIMITS, max_requests_per_connection=1, header_timeout=2.0, write_timeout=2.0, busy_seconds_when_full=0.1
)
"""For the ports that kubelets and monitoring use, and that any stranger reaches. Every answer is short."""


def connection_cap(wanted: int, allowed_descriptors: int, used_descriptors: int) -> int:
    """Return how many connections a port may have: `wanted`, or fewer where the process may not open as many files.

    A process with few descriptors keeps half of the free ones for itself.
    """
    free = max(0, allowed_descriptors - used_descriptors)
    return max(1, min(wanted, max(free // 2, free - RESERVED_DESCRIPTORS)))


def connections_of_this_process(wanted: int) -> int:
    """Return `connection_cap` under this process's RLIMIT_NOFILE (Linux)."""
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if allowed == resource.RLIM_INFINITY:
        return wanted
    return connection_cap(wanted, allowed, len(os.listdir("/proc/self/fd")))


class Allowance:
    """Seconds that a slow peer may still be waited for: `timeout` at first and at most, earned back by its bytes."""

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self.seconds = timeout

    def spend(self, seconds: float, num_bytes: int) -> None:
        """Subtracts a wait of `seconds` and adds the time that its `num_bytes` earn."""
        self.seconds = min(self._timeout, self.seconds - seconds + num_bytes / MIN_BYTES_PER_SECOND)


class OncePerSecond:
    """Tells whether a log line about a repeated event is due."""

    def __init__(self) -> None:
        self._last = float("-inf")

    def due(self) -> bool:
        """Return True at most once per second."""
        now = time.monotonic()
        if now - self._last < 1.0:
            return False
        self._last = now
        return True
