"""Errors of /v1/messages in Anthropic's shape.

Errors of all routes, and of the middleware before them, are in OpenAI's shape. `MessagesErrors`, the middleware around
these, converts those of the routes below /v1/messages.
"""

from __future__ import annotations

import json

from pydantic import ValidationError
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from orca_master.endpoint.messages_answers import MessagesError, MessagesErrorBody
from orca_master.endpoint.middleware import is_of_messages
from orca_master.endpoint.openai_answers import ErrorBody

TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    529: "overloaded_error",
}
"""Type of an error by HTTP status; other statuses: invalid_request_error below 500, else api_error."""
CODES = {"thread": "thread_unsupported_request"}
"""Codes of unsupported fields, by which official clients repeat a request without the field."""


def error_body(status: int, message: str, field: str | None = None) -> bytes:
    """Return an error as JSON. `field`: the invalid field, if there is one."""
    kind = TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")
    details = {"error_code": CODES[field]} if field in CODES else None
    body = MessagesErrorBody(error=MessagesError(type=kind, message=message, details=details))
    return json.dumps(body.model_dump(exclude_none=True)).encode()


def converted(status: int, body: bytes) -> bytes:
    """Return an error in OpenAI's shape as one in Anthropic's; any other body is the message."""
    try:
        error = ErrorBody.model_validate_json(body).error
    except ValidationError:
        return error_body(status, body.decode("utf-8", "replace"))
    # The place of an error in a schema is that in the chat request.
    message = (
        error.message.replace(".function.parameters", ".input_schema") if error.param == "tools" else error.message
    )
    return error_body(status, message, error.param)


class MessagesErrors:
    """Converts the bodies of errors of /v1/messages."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI 3.0."""
        if scope["type"] != "http" or not is_of_messages(scope):
            await self._app(scope, receive, send)
            return
        begin: Message | None = None
        body = b""

        async def convert(message: Message) -> None:
            nonlocal begin, body
            if message["type"] == "http.response.start" and message["status"] >= 400:
                begin = message
                return
            if begin is None:
                await send(message)
                return
            body += message.get("body", b"")
            if message.get("more_body", False):
                return
            # The response to a client that has left has no body.
            content = converted(begin["status"], body) if body else b""
            headers = MutableHeaders(scope=begin)
            headers["Content-Length"] = str(len(content))
            await send(begin)
            await send({"type": "http.response.body", "body": content})

        await self._app(scope, receive, convert)
