"""Options for the stored responses of /v1/responses (`StoreLimits`)."""

from __future__ import annotations

import argparse

from orca_master.commands.argument_types import num_bytes, positive, stall_seconds
from orca_master.endpoint.response_store import StoreLimits


def add_response_options(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    limits = StoreLimits()
    parser.add_argument(
        "--max-stored-responses",
        type=_number_of_responses,
        metavar="N",
        default=limits.count,
        help="maximum stored responses of /v1/responses, in the memory of the master, those that run in the background "
        f"included; 0: none ({limits.count})",
    )
    parser.add_argument(
        "--max-stored-response-bytes",
        type=num_bytes,
        metavar="BYTES",
        default=limits.num_bytes,
        help="maximum memory of stored responses and of the events of those in the background; a new response replaces "
        f"the least recently used ones of the API key that has most ({limits.num_bytes})",
    )
    parser.add_argument(
        "--stored-response-lifetime",
        type=stall_seconds,
        metavar="SECONDS",
        default=int(limits.seconds),
        help=f"how long a response is stored after its last use ({limits.seconds:.0f})",
    )


def store_limits(arguments: argparse.Namespace) -> StoreLimits:
    """Return the limits of these options."""
    return StoreLimits(
        arguments.max_stored_responses,
        arguments.max_stored_response_bytes,
        float(arguments.stored_response_lifetime),
    )


def _number_of_responses(text: str) -> int:
    return 0 if text == "0" else positive(text)
