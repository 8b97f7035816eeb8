"""`InternalErrors`: the middleware that answers a request with HTTP 500 if its route raises what nothing handles.

A request that the end of the server cancels gets HTTP 503. Starlette and uvicorn would answer outside of all
middleware: without the request's id, and unknown to the access log.
"""

from __future__ import annotations

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from orca_master.endpoint.responding import error_response


class InternalErrors:
    """Answers unless the response has begun, and raises an exception again, which the server logs.

    A cancellation, of which the server knows, is not raised again: it would be logged with its traceback.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI 3.0."""
        has_begun = False

        async def note(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        try:
            await self._app(scope, receive, note)
        except Exception as error:
            if scope["type"] == "http" and not has_begun:
                await error_response(500, f"internal error: {type(error).__name__}")(scope, receive, send)
            raise
        except asyncio.CancelledError:
            if scope["type"] == "http" and not has_begun:
                message = "the server is shutting down"
                await error_response(503, message, code="engine_unavailable")(scope, receive, send)
