"""ASGI middleware: request ids with the access log, and API keys. Plain ASGI, which does not buffer streams."""

from __future__ import annotations

import logging
import re
import time
import uuid

from orca_contract import routes
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from orca_master.endpoint.api_keys import KeyRing, digest
from orca_master.endpoint.responding import error_response

logger = logging.getLogger(__name__)

OPEN_PATHS = frozenset(
    {"/health", routes.LIVE, routes.READY, routes.PROGRESS, routes.METRICS, "/version", "/openapi.json", "/docs"}
)
"""Paths without API key and log line: for kubelets, monitoring and documentation."""
REQUEST_ID = "X-Request-Id"
VALID_REQUEST_ID = re.compile(r"[\w.-]{1,128}", re.ASCII)
MAX_LOGGED_PATH = 256
OWNER = "orca.owner"
"""Key of a request's scope: the SHA-256 of its API key in hexadecimal digits; absent without keys."""


def owner_of(request: Request) -> str:
    """Return the SHA-256 of a request's API key, "" without keys."""
    return str(request.scope.get(OWNER, ""))


def path_of(scope: Scope) -> str:
    """Return the path of a request below the root path."""
    return str(scope["path"]).removeprefix(scope.get("root_path", ""))


class RequestIds:
    """Uses a valid `X-Request-Id` of the request or creates one, returns it, and logs each request at its end."""

    def __init__(self, app: ASGIApp, log_requests: bool) -> None:
        self._app = app
        self._log_requests = log_requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI 3.0."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        header = Headers(scope=scope).get(REQUEST_ID, "")
        request_id = header if VALID_REQUEST_ID.fullmatch(header) else uuid.uuid4().hex
        started = time.monotonic()
        status = 0

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)[REQUEST_ID] = request_id
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        finally:
            if self._log_requests and path_of(scope) not in OPEN_PATHS:
                seconds = time.monotonic() - started
                # Percent-encoded as sent: a decoded path could contain blanks and imitate the rest of the line.
                path = scope["raw_path"].decode("latin-1")[:MAX_LOGGED_PATH]
                logger.info("%s %s %d %.3f s id %s", scope["method"], path, status, seconds, request_id)


class ApiKeys:
    """Answers 401 to requests without a valid key (`Authorization: Bearer KEY`)."""

    def __init__(self, app: ASGIApp, keys: KeyRing) -> None:
        self._app = app
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI 3.0."""
        is_open = scope["type"] != "http" or path_of(scope) in OPEN_PATHS or scope["method"] == "OPTIONS"
        key = None if is_open else _key_of(Headers(scope=scope).get("authorization", ""))
        if is_open or (key is not None and self._keys.accepts(key)):
            scope[OWNER] = "" if key is None else digest(key)
            await self._app(scope, receive, send)
            return
        message = "an API key of this server is needed: Authorization: Bearer KEY"
        await error_response(401, message, code="invalid_api_key")(scope, receive, send)


def _key_of(authorization: str) -> str | None:
    """Return the key of an Authorization header, None without one."""
    scheme, _, credentials = authorization.partition(" ")
    # ASGI headers are bytes, which Starlette decodes as latin-1; configured keys are UTF-8.
    return credentials.encode("latin-1").decode("utf-8", "surrogateescape") if scheme.lower() == "bearer" else None
