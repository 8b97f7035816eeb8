"""Routes whose bodies body_checker.py validates. FastAPI only describes these bodies in /openapi.json."""

from __future__ import annotations

import email.message
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute
from starlette.requests import ClientDisconnect

from orca_master.bodies.body_budget import MAX_BYTES, BodyBudget
from orca_master.endpoint.endpoint import Endpoint
from orca_master.endpoint.responding import CLIENT_CLOSED_REQUEST, unless_gone
from orca_master.errors import RequestError

KIND_OF_PATH = {
    "/v1/completions": "completion",
    "/v1/chat/completions": "chat",
    "/tokenize": "tokenize",
    "/detokenize": "detokenize",
}
GENERATIONS = ("completion", "chat")


class _CheckedRequest(Request):
    """A request with a validated body: `json` returns the validated value instead of the JSON document."""

    def __init__(self, request: Request, checked: Any) -> None:
        super().__init__(request.scope, request.receive)
        self._stream_consumed = True
        self._checked = checked

    async def body(self) -> bytes:
        return b"{}"

    async def json(self) -> Any:
        return self._checked


def checked_route(endpoint: Endpoint) -> type[APIRoute]:
    """Return the route class of an endpoint: routes in KIND_OF_PATH have a parameter `body`.

    Unvalidated bodies share a memory budget that fits at least one body of the maximum size.
    """
    budget = BodyBudget(max(MAX_BYTES, endpoint.config.http.max_body_bytes))

    class CheckedRoute(APIRoute):
        def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
            handle = super().get_route_handler()
            kind = KIND_OF_PATH.get(self.path)
            if kind is None:
                return handle

            async def check_and_handle(request: Request) -> Response:
                if not _is_json(request.headers.get("content-type", "")):
                    raise RequestError("the body must be JSON, with Content-Type: application/json")
                body = bytearray()
                with budget.body() as take:
                    try:
                        async for chunk in request.stream():
                            take(len(chunk))
                            body += chunk
                    except ClientDisconnect:
                        return Response(status_code=400)  # the client has disconnected
                    if kind in GENERATIONS:
                        endpoint.check_wait()  # the body has been read, so the connection can be used again
                    checked = await unless_gone(request, endpoint.bodies.check(kind, body, endpoint.lengths))
                    if checked is None:
                        return Response(status_code=CLIENT_CLOSED_REQUEST)
                    body.clear()
                return await handle(_CheckedRequest(request, checked))

            return check_and_handle

    return CheckedRoute


def _is_json(content_type: str) -> bool:
    message = email.message.Message()
    message["content-type"] = content_type
    subtype = message.get_content_subtype()
    return message.get_content_maintype() == "application" and (subtype == "json" or subtype.endswith("+json"))
