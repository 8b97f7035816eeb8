"""ASGI middleware that bounds a request's body in size (413) and in time (408), before and while the application reads.

Innermost, so that a client without a key is refused before anything of its body is read. Bodies that the application
does not read are bounded by the connection (orca_protos/http_connection.py).
"""

from __future__ import annotations

import asyncio
import time

from orca_protos.http_limits import Allowance, HttpLimits
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from orca_master.endpoint.responding import error_response

MIN_BODY_BYTES_PER_SECOND = 16 << 10
"""Least mean rate of a whole body, pauses of `body_timeout` aside. A client that sends just above
http_limits.MIN_BYTES_PER_SECOND would else hold the memory of its body for hours."""


class BodyLimits:
    """Raises HTTPException where the application awaits a body that is too long or too slow."""

    def __init__(self, app: ASGIApp, limits: HttpLimits) -> None:
        self._app = app
        self._limits = limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI 3.0."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        # The parser has checked that it is a number.
        stated = int(Headers(scope=scope).get("content-length", self._limits.max_body_bytes))
        if stated > self._limits.max_body_bytes:
            await error_response(413, self._too_long())(scope, receive, send)
            return
        await self._app(scope, _BoundedBody(receive, self._limits, stated, self._too_long()).receive, send)

    def _too_long(self) -> str:
        return f"the body exceeds {self._limits.max_body_bytes} bytes (--max-body-bytes)"


class _BoundedBody:
    """The body of one request on its way to the application; `stated` is how many bytes it may have."""

    def __init__(self, receive: Receive, limits: HttpLimits, stated: int, too_long: str) -> None:
        self._receive = receive
        self._limits = limits
        self._too_long = too_long
        self._allowance = Allowance(limits.body_timeout)
        self._total_seconds = limits.body_timeout + stated / MIN_BODY_BYTES_PER_SECOND
        self._deadline: float | None = None
        self._num_bytes = 0
        self._complete = False

    async def receive(self) -> Message:
        """See ASGI 3.0; after the body, waits without a bound for the client to leave."""
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
                f"the body came too slowly: a client may pause for {self._limits.body_timeout:g} s, "
                f"and send this body for {self._total_seconds:.0f} s"
            )
            raise HTTPException(408, slow) from error
        num_bytes = len(message.get("body", b""))
        self._allowance.spend(time.monotonic() - started, num_bytes)
        self._num_bytes += num_bytes
        self._complete = not message.get("more_body", False)
        if self._num_bytes > self._limits.max_body_bytes:
            raise HTTPException(413, self._too_long)
        return message
