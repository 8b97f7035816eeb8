"""ASGI middleware: request ids with the access log, and API keys. Plain ASGI, which does not buffer streams."""

from __future__ import annotations

import logging
import re
import time
import uuid
from collections.abc import Callable

from orca_contract import routes
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.routing import Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from orca_master.bodies.body import REQUEST_ID_PATTERN
from orca_master.endpoint.api_keys import KeyRing, digest
from orca_master.endpoint.request_deadline import ARRIVAL
from orca_master.endpoint.responding import error_response

logger = logging.getLogger(__name__)

OPEN_PATHS = frozenset(
    {"/health", "/ping", routes.LIVE, routes.READY, routes.PROGRESS, "/load", routes.METRICS, "/version"}
    | {"/openapi.json", "/docs"}
)
"""Paths without API key and log line: for kubelets, monitoring and documentation."""
REQUEST_ID = "X-Request-Id"
VALID_REQUEST_ID = re.compile(REQUEST_ID_PATTERN)
CLIENTS_ID = "orca.request_id"
"""Key of a request's scope: its id by the client, of its header or else of its body; absent without one."""
MAX_LOGGED_PATH = 256
MESSAGES = "/v1/messages"
"""Anthropic's routes: this path and those below it."""
UNKNOWN_ROUTE = "unknown"
"""Stands for all paths without a route, of which clients could send any number."""
OWNER = "orca.owner"
"""Key of a request's scope: the SHA-256 of its API key in hexadecimal digits; absent without keys."""


def owner_of(request: Request) -> str:
    """Return the SHA-256 of a request's API key, "" without keys."""
    return str(request.scope.get(OWNER, ""))


def path_of(scope: Scope) -> str:
    """Return the path of a request below the root path."""
    return str(scope["path"]).removeprefix(scope.get("root_path", ""))


def is_of_messages(scope: Scope) -> bool:
    """Return True if a request is for one of Anthropic's routes."""
    return f"{path_of(scope)}/".startswith(f"{MESSAGES}/")


def template_of(scope: Scope) -> str:
    """Return the path of a request's route with names for its parameters, UNKNOWN_ROUTE without a route.

    Middleware answers some requests before they reach the router, which would note their route in the scope.
    """
    routes = (scope["route"],) if "route" in scope else scope["app"].routes
    return next((route.path for route in routes if route.matches(scope)[0] is not Match.NONE), UNKNOWN_ROUTE)


class RequestIds:
    """Names each request, returns its id as `X-Request-Id`, and logs each request at its end.

    The id is that of a valid `X-Request-Id` of the request, else that of its body, else a new one.
    `note` is called with the route and the status of each response, before the client has the response.
    """

    def __init__(self, app: ASGIApp, log_requests: bool, note: Callable[[str, int], None]) -> None:
        self._app = app
        self._log_requests = log_requests
        self._note = note

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI 3.0."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        header = Headers(scope=scope).get(REQUEST_ID, "")
        if VALID_REQUEST_ID.fullmatch(header):
            scope[CLIENTS_ID] = header
        new_id = uuid.uuid4().hex
        started = scope[ARRIVAL] = time.monotonic()
        status = 0

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)[REQUEST_ID] = scope.get(CLIENTS_ID, new_id)
                self._note(template_of(scope), status)
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        finally:
            if self._log_requests and path_of(scope) not in OPEN_PATHS:
                seconds = time.monotonic() - started
                # Percent-encoded as sent: a decoded path could contain blanks and imitate the rest of the line.
                path = scope["raw_path"].decode("latin-1")[:MAX_LOGGED_PATH]
                request_id = scope.get(CLIENTS_ID, new_id)
                logger.info("%s %s %d %.3f s id %s", scope["method"], path, status, seconds, request_id)


class ApiKeys:
    """Answers 401 to requests without a valid key: `Authorization: Bearer KEY`; for messages also `x-api-key: KEY`."""

    def __init__(self, app: ASGIApp, keys: KeyRing) -> None:
        self._app = app
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI 3.0."""
        is_open = scope["type"] != "http" or path_of(scope) in OPEN_PATHS or scope["method"] == "OPTIONS"
        key = None if is_open else next(filter(self._keys.accepts, keys_of(scope)), None)
        if is_open or key is not None:
            scope[OWNER] = "" if key is None else digest(key)
            await self._app(scope, receive, send)
            return
        other = "x-api-key: KEY, or " if is_of_messages(scope) else ""
        message = f"an API key of this server is needed: {other}Authorization: Bearer KEY"
        response = error_response(401, message, code="invalid_api_key")
        response.headers["WWW-Authenticate"] = "Bearer"
        await response(scope, receive, send)


def keys_of(scope: Scope) -> list[str]:
    """Return the keys that a request names in its headers."""
    headers = Headers(scope=scope)
    scheme, _, credentials = headers.get("authorization", "").partition(" ")
    keys = [credentials] if scheme.lower() == "bearer" else []
    if is_of_messages(scope) and "x-api-key" in headers:
        keys.append(headers["x-api-key"])
    # ASGI headers are bytes, which Starlette decodes as latin-1; configured keys are UTF-8.
    return [key.encode("latin-1").decode("utf-8", "surrogateescape") for key in keys]
