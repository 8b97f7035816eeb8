"""`parent_of`: the parent of a request's span, as the client's headers name it (W3C Trace Context)."""

from __future__ import annotations

from fastapi import Request

from orca_master.engine.messages import Trace

MAX_PARENT_LENGTH = 256
"""Of `traceparent`: version 00 has 55 characters, and later ones may append to them."""
MAX_STATE_LENGTH = 2048
"""Of `tracestate`, several headers joined; the standard asks for 512 at least."""


def parent_of(request: Request) -> Trace:
    """Return the unchecked headers of a request, without those that are longer than any valid one."""
    parent = request.headers.get("traceparent", "")
    state = ",".join(request.headers.getlist("tracestate"))
    return Trace(
        traceparent=parent if len(parent) <= MAX_PARENT_LENGTH else "",
        tracestate=state if len(state) <= MAX_STATE_LENGTH else "",
    )
