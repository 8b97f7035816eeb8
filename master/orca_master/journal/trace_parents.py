"""The record of the parent of a request's span: `["tokens", [0, NUMBER, TRACEPARENT, TRACESTATE]]`.

It follows the record of the request. As Previous and Weights (records.py) it has the form of a token of the request 0:
versions before it ignore it, while for another field of the request they would ignore the rest of the file.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from orca_master.journal.records import JournalledRequest, encode


def parent_line(number: int, parent: tuple[str, str]) -> bytes:
    """Return the line of a parent, empty without one. `parent`: traceparent and tracestate, see engine/messages.py."""
    return encode(["tokens", [0, number, *parent]]) if any(parent) else b""


def take_parent(record: list[Any], requests: dict[int, JournalledRequest]) -> None:
    """Give the request of a parent's record its parent; do nothing for other records and unknown requests."""
    match record:
        case ["tokens", [0, int(number), str(traceparent), str(tracestate)]] if number in requests:
            whole = requests[number]
            whole.accepted = replace(whole.accepted, parent=(traceparent, tracestate))
