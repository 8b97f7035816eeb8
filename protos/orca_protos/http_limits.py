"""Limits of an HTTP port, and the pure functions that compute them.

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
"""Minimum rate of a peer: a slower peer is disconnected after the timeout."""
RESERVED_DESCRIPTORS = 128
"""Reserved for the other ports of the process, its channels to workers, and files."""


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """Bounds of one listening port. Sizes in bytes, times in seconds.

    `max_header_bytes` bounds the URL, too. `max_unread_bytes` bounds the generated text of a stream that the client has
    not read.

    `header_timeout` bounds also the silence before the first request, `keep_alive_timeout` the silence between two. The
    default of the latter is longer than the idle timeouts of clients (httpx: 5 s) and of proxies (usually 60 s). With
    equal timeouts both ends act at the same moment: the client sends a request, the server closes the connection.

    A new connection at `max_connections` closes connections that have had no request, or an unfinished TLS handshake,
    for `idle_seconds_when_full`; if there are none, the oldest one above `busy_seconds_when_full`.
    """

    max_header_bytes: int = 64 << 10
    max_header_count: int = 256
    max_body_bytes: int = 32 << 20
    max_connections: int = 8192
    max_requests_per_connection: int = 1_000_000
    header_timeout: float = 10.0
    body_timeout: float = 10.0
    keep_alive_timeout: float = 75.0
    write_timeout: float = 30.0
    max_unread_bytes: int = 8 << 20
    handshake_timeout: float = 2.0
    idle_seconds_when_full: float = 1.0
    busy_seconds_when_full: float = math.inf


ADMIN_LIMITS = HttpLimits(max_body_bytes=1 << 20, max_connections=32, idle_seconds_when_full=0.1)
"""For the operator's port. Busy connections are never closed: the handshake rejects clients without a certificate."""
PROBE_LIMITS = replace(
    ADMIN_LIMITS, max_requests_per_connection=1, header_timeout=2.0, write_timeout=2.0, busy_seconds_when_full=0.1
)
"""For the ports of kubelets and monitoring, which are open to every client. All responses are short."""


def connection_cap(requested: int, allowed_descriptors: int, used_descriptors: int) -> int:
    """Return the maximum number of connections of a port: `requested`, or less if descriptors are scarce.

    At least half of the free descriptors, or all but RESERVED_DESCRIPTORS, are available for connections.
    """
    free = max(0, allowed_descriptors - used_descriptors)
    return max(1, min(requested, max(free // 2, free - RESERVED_DESCRIPTORS)))


def connections_of_this_process(requested: int) -> int:
    """Return `connection_cap` under this process's RLIMIT_NOFILE (Linux)."""
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if allowed == resource.RLIM_INFINITY:
        return requested
    return connection_cap(requested, allowed, len(os.listdir("/proc/self/fd")))


class Allowance:
    """Remaining wait for a slow peer in seconds: initially and at most `timeout`, replenished by received bytes."""

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self.seconds = timeout

    def spend(self, seconds: float, num_bytes: int) -> None:
        """Subtract a wait of `seconds`, and add the time that `num_bytes` need at MIN_BYTES_PER_SECOND."""
        self.seconds = min(self._timeout, self.seconds - seconds + num_bytes / MIN_BYTES_PER_SECOND)


class OncePerSecond:
    """Rate limit for log lines about a repeated event."""

    def __init__(self) -> None:
        self._last = float("-inf")

    def due(self) -> bool:
        """Return True at most once per second."""
        now = time.monotonic()
        if now - self._last < 1.0:
            return False
        self._last = now
        return True
