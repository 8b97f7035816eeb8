"""From the bytes of a request's body to a checked value: `check_body`, and the route class that uses it.

FastAPI would collect every error of a body before it reports the first; here the first one ends the validation of a
list (openai_types.py), and an error never repeats the input.
"""

from __future__ import annotations

import email.message
import json
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, get_type_hints

from fastapi import Request, Response
from fastapi.routing import APIRoute
from pydantic import TypeAdapter, ValidationError
from starlette.requests import ClientDisconnect

from orca_master.errors import RequestError
from orca_master.lengths import Lengths
from orca_master.openai_types import TAGS

MAX_MESSAGE = 1000
"""Characters of an error message."""
MAX_FIELD = 64
"""Characters of a field's name in an error."""


def check_body(adapter: TypeAdapter[Any], body: bytes, lengths: Lengths) -> Any:
    """Returns the value of a JSON document; raises RequestError."""
    try:
        data = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"the body is not valid JSON: {shortened(str(error))}") from error
    try:
        return adapter.validate_python(data, context=lengths)
    except ValidationError as error:
        raise described(error.errors(include_url=False, include_context=False, include_input=False)) from None


def described(errors: Sequence[Any]) -> RequestError:
    """Returns pydantic's errors as one error with the name of the field to blame."""
    # Where a field may have several types each is complained about; the deepest error is meant, and one about a value
    # rather than a type.
    first = max(errors, key=lambda error: (len(error["loc"]), not error["type"].endswith("_type")))
    path = [str(part)[:MAX_FIELD] for place, part in enumerate(first["loc"]) if not _names_a_type(place, str(part))]
    message = shortened(first["msg"].removeprefix("Value error, "))
    if first["type"] == "extra_forbidden":
        message = "this field is not known or not supported here"
    if path:
        return RequestError(f"{'.'.join(path)}: {message}", path[0])
    # Rules over several fields begin with the name of the one to blame.
    return RequestError(message, message.partition(":")[0] if first["type"] == "value_error" else None)


def _names_a_type(place: int, part: str) -> bool:
    """Whether a part of a location is none of the body: pydantic puts the types among the fields that it tried."""
    if place == 0:
        return part == "body" or part in TAGS
    return part == "str" or "[" in part


def shortened(message: str) -> str:
    """The beginning of a message that may repeat the input."""
    return message if len(message) <= MAX_MESSAGE else f"{message[:MAX_MESSAGE]}…"


class _CheckedRequest(Request):
    """A request whose body has been checked: FastAPI gets the value in place of the JSON document."""

    def __init__(self, request: Request, checked: Any) -> None:
        super().__init__(request.scope, request.receive)
        self._stream_consumed = True
        self._checked = checked

    async def body(self) -> bytes:
        return b"{}"

    async def json(self) -> Any:
        return self._checked


def checked_route(lengths: Callable[[], Lengths]) -> type[APIRoute]:
    """Returns the class of routes whose function has a parameter `body`; `lengths` has the bounds of the moment."""

    class CheckedRoute(APIRoute):
        def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
            handle = super().get_route_handler()
            body_type = get_type_hints(self.endpoint, include_extras=True).get("body")
            if body_type is None:
                return handle
            adapter: TypeAdapter[Any] = TypeAdapter(body_type)

            async def check_and_handle(request: Request) -> Response:
                if not _is_json(request.headers.get("content-type", "")):
                    raise RequestError("the body must be JSON, with Content-Type: application/json")
                try:
                    body = await request.body()
                except ClientDisconnect:
                    return Response(status_code=400)  # nobody receives it
                return await handle(_CheckedRequest(request, check_body(adapter, body, lengths())))

            return check_and_handle

    return CheckedRoute


def _is_json(content_type: str) -> bool:
    message = email.message.Message()
    message["content-type"] = content_type
    subtype = message.get_content_subtype()
    return message.get_content_maintype() == "application" and (subtype == "json" or subtype.endswith("+json"))
