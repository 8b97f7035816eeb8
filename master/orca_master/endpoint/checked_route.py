"""Routes whose bodies body_checker.py validates. FastAPI only describes these bodies in /openapi.json."""

from __future__ import annotations

import email.message
import inspect
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.encoders import jsonable_encoder
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from starlette.requests import ClientDisconnect

from orca_master.bodies.body_budget import MAX_BYTES, BodyBudget
from orca_master.bodies.body_checker import SMALL_BYTES
from orca_master.bodies.score_requests import RERANK_ROUTES, SCORE_ROUTES
from orca_master.endpoint.delivery import CLIENT_CLOSED_REQUEST, unless_gone
from orca_master.endpoint.endpoint import Endpoint
from orca_master.endpoint.middleware import CLIENTS_ID, owner_of
from orca_master.errors import RequestError

KIND_OF_PATH = {
    "/v1/completions": "completion",
    "/v1/chat/completions": "chat",
    "/v1/embeddings": "embedding",
    "/v1/messages": "messages",
    "/v1/messages/count_tokens": "count_tokens",
    "/v1/responses": "response",
    "/v1/responses/input_tokens": "response",
    "/v1/batches": "batch",
    "/v1/load_lora_adapter": "load_adapter",
    "/v1/unload_lora_adapter": "unload_adapter",
    "/tokenize": "tokenize",
    "/detokenize": "detokenize",
    **dict.fromkeys(SCORE_ROUTES, "score"),
    **dict.fromkeys(RERANK_ROUTES, "rerank"),
}


def checked_route(endpoint: Endpoint) -> type[APIRoute]:
    """Return the route class of an endpoint.

    It calls the functions of KIND_OF_PATH itself, with the validated body and, if they have the parameter, `request`.
    Unvalidated bodies share a memory budget that fits at least one body of the maximum size.
    """
    largest = endpoint.config.http.max_body_bytes
    budget = BodyBudget(max(MAX_BYTES, largest), largest)

    class CheckedRoute(APIRoute):
        def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
            kind = KIND_OF_PATH.get(self.path)
            if kind is None or "POST" not in (self.methods or ()):
                return super().get_route_handler()
            wants_request = "request" in inspect.signature(self.endpoint).parameters

            async def check_and_handle(request: Request) -> Response:
                if not _is_json(request.headers.get("content-type", "")):
                    raise RequestError("the body must be JSON, with Content-Type: application/json")
                body = bytearray()
                with budget.body(owner_of(request)) as take:
                    try:
                        async for chunk in request.stream():
                            take(len(chunk))
                            body += chunk
                    except ClientDisconnect:
                        return Response(status_code=400)  # the client has disconnected
                    check = endpoint.bodies.check(kind, body, endpoint.lengths, endpoint.caller(owner_of(request)))
                    checked = await (check if len(body) <= SMALL_BYTES else unless_gone(request, check))
                    if checked is None:
                        return Response(status_code=CLIENT_CLOSED_REQUEST)
                    body.clear()
                if (request_id := getattr(checked, "request_id", None)) is not None:
                    request.scope.setdefault(CLIENTS_ID, request_id)
                checked = endpoint.with_defaults(checked)
                answer = await self.endpoint(checked, *((request,) if wants_request else ()))
                return answer if isinstance(answer, Response) else JSONResponse(jsonable_encoder(answer))

            return check_and_handle

    return CheckedRoute


def _is_json(content_type: str) -> bool:
    message = email.message.Message()
    message["content-type"] = content_type
    subtype = message.get_content_subtype()
    return message.get_content_maintype() == "application" and (subtype == "json" or subtype.endswith("+json"))
