"""Options for limits of connections and requests of the API port (`HttpLimits`)."""

from __future__ import annotations

import argparse

from orca_protos.http_limits import HttpLimits

from orca_master.commands.argument_types import positive

HTTP_LIMITS = (
    (
        "h11-max-incomplete-event-size",
        "max_header_bytes",
        "BYTES",
        "maximum length of a URL (414 if exceeded) and of a request's head; 431 if exceeded",
    ),
    ("h11-max-header-count", "max_header_count", "N", "maximum header fields of a request; 431 if exceeded"),
    (
        "max-body-bytes",
        "max_body_bytes",
        "BYTES",
        "maximum request body; 413 if exceeded. All unvalidated bodies share 256 MiB per process, of which those of an "
        "API key have at most half; 429 if exceeded",
    ),
    (
        "max-connections",
        "max_connections",
        "N",
        "maximum open connections per process, fewer if ulimit -n is lower; at the limit idle connections are closed "
        "and new connections wait",
    ),
    ("header-timeout", "header_timeout", "SECONDS", "timeout of a request's head; 408 if exceeded"),
    (
        "body-timeout",
        "body_timeout",
        "SECONDS",
        "maximum pause (below 1 KiB/s) while a client sends a body, and, plus one second per 16 KiB, the timeout of a "
        "body; 408 if exceeded",
    ),
    (
        "timeout-keep-alive",
        "keep_alive_timeout",
        "SECONDS",
        "timeout of an idle connection between requests; longer than the idle timeouts of proxies in front",
    ),
    (
        "write-timeout",
        "write_timeout",
        "SECONDS",
        "maximum pause (below 1 KiB/s) of a client that does not read its response; then the request is cancelled",
    ),
    (
        "max-unread-bytes",
        "max_unread_bytes",
        "BYTES",
        "maximum unread text per stream; beyond that the request is cancelled",
    ),
)
"""Option, field of HttpLimits, unit, help. The first two names are vLLM's, --timeout-keep-alive is uvicorn's."""


def add_http_limits(parser: argparse.ArgumentParser) -> None:
    """Add the options for the limits of the API port."""
    for name, field, unit, text in HTTP_LIMITS:
        default = int(getattr(HttpLimits(), field))
        parser.add_argument(f"--{name}", type=positive, metavar=unit, default=default, help=f"{text} ({default})")


def http_limits(arguments: argparse.Namespace) -> HttpLimits:
    """Return the limits of the API port."""
    return HttpLimits(**{field: getattr(arguments, name.replace("-", "_")) for name, field, *_ in HTTP_LIMITS})
