"""Options that bound the connections and requests of the API's port (`HttpLimits`)."""

from __future__ import annotations

import argparse

from orca_protos.http_limits import HttpLimits

from orca_master.commands.argument_types import positive

HTTP_LIMITS = (
    (
        "h11-max-incomplete-event-size",
        "max_header_bytes",
        "BYTES",
        "longest URL (beyond: 414) and longest head of a request; beyond, 431",
    ),
    ("h11-max-header-count", "max_header_count", "N", "header fields of a request; beyond, 431"),
    (
        "max-body-bytes",
        "max_body_bytes",
        "BYTES",
        "longest body of a request; beyond, 413. All bodies under way share 256 MiB per process; beyond, 429",
    ),
    (
        "max-connections",
        "max_connections",
        "N",
        "open connections per process, fewer if ulimit -n demands it; beyond, idle ones are closed and new ones wait",
    ),
    ("header-timeout", "header_timeout", "SECONDS", "longest time for the head of a request; beyond, 408"),
    (
        "body-timeout",
        "body_timeout",
        "SECONDS",
        "longest pause (below 1 KiB/s) of a client that sends a body, and, with a second more per 16 KiB, the longest "
        "time of a body; beyond, 408",
    ),
    ("timeout-keep-alive", "keep_alive_timeout", "SECONDS", "longest wait of a connection for a request"),
    (
        "write-timeout",
        "write_timeout",
        "SECONDS",
        "longest pause (below 1 KiB/s) of a client that does not read its answer; beyond, its request is cancelled",
    ),
    (
        "max-unread-bytes",
        "max_unread_bytes",
        "BYTES",
        "text kept per stream for a client that does not read; beyond, its request is cancelled",
    ),
)
"""Option, field of HttpLimits, unit, meaning. The first two names are vLLM's, --timeout-keep-alive is uvicorn's."""


def add_http_limits(parser: argparse.ArgumentParser) -> None:
    """Add the bounds of the API's port."""
    for name, field, unit, text in HTTP_LIMITS:
        default = int(getattr(HttpLimits(), field))
        parser.add_argument(f"--{name}", type=positive, metavar=unit, default=default, help=f"{text} ({default})")


def http_limits(arguments: argparse.Namespace) -> HttpLimits:
    """Return the bounds of the API's port."""
    return HttpLimits(**{field: getattr(arguments, name.replace("-", "_")) for name, field, *_ in HTTP_LIMITS})
