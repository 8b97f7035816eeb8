"""ASGI middleware that limits the size (413) and transfer time (408) of request bodies, and refuses encoded ones (415).

Uploads have a limit of their own. Inside the check of API keys, so that a client without a key is refused before its
body is read. The connection limits bodies that the application does not read (orca_protos/http_connection.py).
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

from orca_protos.http_limits import Allowance, HttpLimits
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from orca_master.endpoint.middleware import path_of
from orca_master.endpoint.responding import error_response

MIN_BODY_BYTES_PER_SECOND = 16 << 10
"""Minimum mean rate of a whole body, after a pause of `body_timeout`. Without it a client slightly above
http_limits.MIN_BYTES_PER_SECOND could occupy the memory of its body for hours."""

UPLOADS = "/v1/files"
FORM_BYTES = 64 << 10
"""Of the form around a file."""


class BodyLimits:
    """Raises HTTPException from `receive` for a body that is too long or too slow; answers 415 to an encoded one.

    `max_file_bytes`: of a file sent to UPLOADS, to which its form adds a little; None: as for other bodies.
    """

    def __init__(self, app: ASGIApp, limits: HttpLimits, max_file_bytes: int | None = None) -> None:
        self._app = app
        self._limits = limits
        self._too_long = f"the body exceeds {limits.max_body_bytes} bytes (--max-body-bytes)"
        self._upload_limits, self._upload_too_long = limits, self._too_long
        if max_file_bytes is not None:
            self._upload_limits = replace(limits, max_body_bytes=max_file_bytes + FORM_BYTES)
            self._upload_too_long = f"the file exceeds {max_file_bytes} bytes (--max-batch-file-bytes): send several"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI 3.0."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        if (coding := headers.get("content-encoding", "identity")).lower() not in ("", "identity"):
            message = f"Content-Encoding: {coding[:40]!r} is not supported"
            refusal = error_response(415, f"{message}: send the body uncompressed, without this header")
            refusal.headers["Accept-Encoding"] = "identity"  # RFC 9110, section 15.5.16
            await refusal(scope, receive, send)
            return
        # The HTTP parser has checked that Content-Length is a number.
        limits, too_long = self._limits, self._too_long
        if path_of(scope) == UPLOADS:
            limits, too_long = self._upload_limits, self._upload_too_long
        length = int(headers.get("content-length", limits.max_body_bytes))
        if length > limits.max_body_bytes:
            await error_response(413, too_long)(scope, receive, send)
            return
        await self._app(scope, _BoundedBody(receive, limits, length, too_long).receive, send)


class _BoundedBody:
    """The limited body of one request; `length` is its Content-Length, else the limit."""

    def __init__(self, receive: Receive, limits: HttpLimits, length: int, too_long: str) -> None:
        self._receive = receive
        self._limits = limits
        self._too_long = too_long
        self._allowance = Allowance(limits.body_timeout)
        self._total_seconds = limits.body_timeout + length / MIN_BODY_BYTES_PER_SECOND
        self._deadline: float | None = None
        self._num_bytes = 0
        self._complete = False

    async def receive(self) -> Message:
        """See ASGI 3.0; after the body, wait without a timeout for the client to disconnect."""
        if self._complete:
            return await self._receive()
        started = time.monotonic()
        try:
            if self._deadline is None:
                self._deadline = started + self._total_seconds
            async with asyncio.timeout(min(self._allowance.seconds, self._deadline - started)):
                message = await self._receive()
        except TimeoutError as error:
            slow = (
                f"the body came too slowly: the limits are {self._limits.body_timeout:g} s for a pause "
                f"and {self._total_seconds:.0f} s for this body"
            )
            raise HTTPException(408, slow) from error
        num_bytes = len(message.get("body", b""))
        self._allowance.spend(time.monotonic() - started, num_bytes)
        self._num_bytes += num_bytes
        self._complete = not message.get("more_body", False)
        if self._num_bytes > self._limits.max_body_bytes:
            raise HTTPException(413, self._too_long)
        return message
