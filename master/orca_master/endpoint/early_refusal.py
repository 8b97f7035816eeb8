"""ASGI middleware that refuses generations (429) while the engine would refuse any for its expected wait.

Under an overload most requests are refused. This costs a fraction of routing a request, checking its body and asking
the engine. Inside the limits of bodies: the body is read and dropped, so that the client can use its connection again.
"""

from __future__ import annotations

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send

from orca_master.bodies.score_requests import RERANK_ROUTES, SCORE_ROUTES
from orca_master.endpoint.endpoint import Endpoint
from orca_master.endpoint.middleware import path_of
from orca_master.endpoint.responding import error_response, queue_full_response
from orca_master.errors import QueueFullError

GENERATIONS = frozenset(
    {"/v1/completions", "/v1/chat/completions", "/v1/embeddings", "/v1/messages", "/v1/responses"}
    | {*SCORE_ROUTES, *RERANK_ROUTES}
)


class EarlyRefusal:
    """Passes a request on, unless the request is a generation that the engine would refuse now."""

    def __init__(self, app: ASGIApp, endpoint: Endpoint) -> None:
        self._app = app
        self._endpoint = endpoint

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI 3.0."""
        if scope["type"] != "http" or scope["method"] != "POST" or path_of(scope) not in GENERATIONS:
            await self._app(scope, receive, send)
            return
        try:
            self._endpoint.check_wait()
        except QueueFullError as error:
            response = queue_full_response(str(error), self._endpoint.engine.status)
        else:
            await self._app(scope, receive, send)
            return
        try:
            while (message := await receive())["type"] == "http.request" and message.get("more_body", False):
                pass
        except HTTPException as error:  # the body is too long or too slow
            response = error_response(error.status_code, str(error.detail))
        await response(scope, receive, send)
