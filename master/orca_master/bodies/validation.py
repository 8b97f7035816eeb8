"""From the bytes of a request's body to a checked value, and the form in which a value passes between processes.

FastAPI would collect every error of a body before it reports the first; here the first one ends the validation of a
list (openai_requests.py, tokenize_requests.py), and an error never repeats the input.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Sequence
from typing import Any

from pydantic import TypeAdapter, ValidationError

from orca_master.bodies.lengths import Lengths
from orca_master.bodies.openai_requests import ChatCompletionRequest, CompletionRequest
from orca_master.bodies.tokenize_requests import TAGS, DetokenizeRequest, TokenizeRequest
from orca_master.errors import RequestError

KINDS: dict[str, TypeAdapter[Any]] = {
    "completion": TypeAdapter(CompletionRequest),
    "chat": TypeAdapter(ChatCompletionRequest),
    "tokenize": TypeAdapter(TokenizeRequest),
    "detokenize": TypeAdapter(DetokenizeRequest),
}
"""What a body can be."""
MAX_MESSAGE = 1000
"""Characters of an error message."""
MAX_FIELD = 64
"""Characters of a field's name in an error."""


def check_body(kind: str, body: bytes | bytearray, lengths: Lengths) -> Any:
    """Return the value of a JSON document, of one of KINDS; raise RequestError."""
    try:
        data = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"the body is not valid JSON: {shortened(str(error))}") from error
    try:
        return KINDS[kind].validate_python(data, context=lengths)
    except ValidationError as error:
        raise described(error.errors(include_url=False, include_context=False, include_input=False)) from None


def described(errors: Sequence[Any]) -> RequestError:
    """Return pydantic's errors as one error with the name of the field to blame."""
    # A field with several types gets errors for each of them. The deepest error is reported, and of several one about
    # a value rather than a type.
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
    """Whether a part of a location names a type that pydantic tried, and not a field or an index of the body."""
    if place == 0:
        return part == "body" or part in TAGS
    return part == "str" or "[" in part


def shortened(message: str) -> str:
    """Return the beginning of a message that may repeat the input."""
    return message if len(message) <= MAX_MESSAGE else f"{message[:MAX_MESSAGE]}…"


def pack(value: Any) -> tuple[dict[str, Any], bytes]:
    """Return a checked value as what JSON can hold, and its token ids as 32-bit numbers: see `unpack`."""
    names = {name for name in ("prompt", "tokens") if isinstance(getattr(value, name, None), list)}
    packed: dict[str, Any] = {"value": value.model_dump(exclude=names, exclude_unset=True)}
    if "messages" in packed["value"]:
        packed["value"]["messages"] = [
            message.model_dump(exclude={"content"}, exclude_none=True) | {"content": message.text}
            for message in value.messages
        ]
    token_ids = array("I")
    for name in names:
        entries = getattr(value, name)
        if entries and isinstance(entries[0], str):
            packed["value"][name] = entries
            continue
        nested = bool(entries) and isinstance(entries[0], list)
        lists = entries if nested else [entries]
        for ids in lists:
            token_ids.extend(ids)
        packed |= {"name": name, "nested": nested, "lengths": list(map(len, lists))}
    return packed, token_ids.tobytes()


def unpack(kind: str, packed: dict[str, Any], token_ids: bytes) -> Any:
    """Return the value that was packed. Token ids are arrays: four bytes each, where a list takes forty."""
    name = packed.get("name")
    if name is None:
        return KINDS[kind].validate_python(packed["value"])
    value = KINDS[kind].validate_python({**packed["value"], name: [[0]] if packed["nested"] else [0]})
    lists, start = [], 0
    for length in packed["lengths"]:
        lists.append(array("I", token_ids[start : start + 4 * length]))
        start += 4 * length
    return value.model_copy(update={name: lists if packed["nested"] else lists[0]})
