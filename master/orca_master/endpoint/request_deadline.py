"""`requested_timeout`: the header X-Request-Deadline, with which a client bounds its request, its wait included."""

from __future__ import annotations

from collections.abc import Mapping

from orca_master.errors import RequestError

HEADER = "X-Request-Deadline"
MAX_SECONDS = 86400.0


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
