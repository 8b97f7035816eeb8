"""Validates request bodies, and converts validated values for the transfer between processes.

FastAPI would collect all errors of a body before it reports the first; here the first error ends the validation of a
list (openai_requests.py, tokenize_requests.py), and error messages do not contain the input.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Sequence
from typing import Any

from pydantic import TypeAdapter, ValidationError

from orca_master.bodies.adapter_requests import LoadAdapterRequest, UnloadAdapterRequest
from orca_master.bodies.batch_requests import BatchRequest
from orca_master.bodies.embedding_requests import EmbeddingRequest
from orca_master.bodies.lengths import Lengths
from orca_master.bodies.messages_requests import CountTokensRequest, MessagesRequest
from orca_master.bodies.openai_requests import ChatCompletionRequest, CompletionRequest
from orca_master.bodies.response_requests import ResponseRequest
from orca_master.bodies.score_requests import SCORE_TAGS, RerankRequest, ScoreRequest
from orca_master.bodies.tokenize_requests import TAGS, DetokenizeRequest, TokenizeChatRequest, TokenizeRequest
from orca_master.errors import CONTEXT_EXCEEDED, RequestError

KINDS: dict[str, TypeAdapter[Any]] = {
    "completion": TypeAdapter(CompletionRequest),
    "chat": TypeAdapter(ChatCompletionRequest),
    "messages": TypeAdapter(MessagesRequest),
    "count_tokens": TypeAdapter(CountTokensRequest),
    "response": TypeAdapter(ResponseRequest),
    "embedding": TypeAdapter(EmbeddingRequest),
    "score": TypeAdapter(ScoreRequest),
    "rerank": TypeAdapter(RerankRequest),
    "batch": TypeAdapter(BatchRequest),
    "load_adapter": TypeAdapter(LoadAdapterRequest),
    "unload_adapter": TypeAdapter(UnloadAdapterRequest),
    "tokenize": TypeAdapter(TokenizeRequest),
    "detokenize": TypeAdapter(DetokenizeRequest),
}
"""Kinds of bodies → validator."""
MAX_MESSAGE = 1000
"""Maximum characters of an error message."""
MAX_FIELD = 64
"""Maximum characters of a field's name in an error."""


def check_body(kind: str, body: bytes | bytearray, lengths: Lengths) -> Any:
    """Parse and validate a JSON body of a kind in KINDS; raise RequestError."""
    try:
        data = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"the body is not valid JSON: {shortened(str(error))}") from error
    try:
        return KINDS[kind].validate_python(data, context=lengths)
    except ValidationError as error:
        raise described(error.errors(include_url=False, include_context=False, include_input=False)) from None


def described(errors: Sequence[Any]) -> RequestError:
    """Convert pydantic's errors to one error with the name of the invalid field."""
    # A field of a union type gets errors for each type. Report the deepest error; of several, prefer an error about
    # a value to an error about a type.
    first = max(errors, key=lambda error: (len(error["loc"]), not error["type"].endswith("_type")))
    is_unknown = first["type"] == "extra_forbidden"
    num_known = len(first["loc"]) - is_unknown  # an unknown field may have the name of a type
    path = [
        str(part)[:MAX_FIELD]
        for place, part in enumerate(first["loc"])
        if place >= num_known or not _names_a_type(place, str(part))
    ]
    message = shortened(first["msg"].removeprefix("Value error, "))
    if is_unknown:
        message = "this field is unknown or not supported"
    if path:
        code = CONTEXT_EXCEEDED if first["type"] == CONTEXT_EXCEEDED else None
        return RequestError(f"{'.'.join(path)}: {message}", path[0], code)
    # Messages of checks over several fields begin with the name of the invalid field.
    return RequestError(message, message.partition(":")[0] if first["type"] == "value_error" else None)


def _names_a_type(place: int, part: str) -> bool:
    """Return True if a part of a location is a type that pydantic tried, not a field or an index of the body."""
    if place == 0:
        return part == "body" or part in TAGS or part in SCORE_TAGS
    return part == "str" or "[" in part


def shortened(message: str) -> str:
    """Truncate a message that may contain the input."""
    return message if len(message) <= MAX_MESSAGE else f"{message[:MAX_MESSAGE]}…"


def pack(value: Any) -> tuple[dict[str, Any], bytes]:
    """Convert a validated value to JSON data and 32-bit token ids; the inverse of `unpack`."""
    fields = ("input",) if isinstance(value, EmbeddingRequest) else ("prompt", "tokens")
    names = {name for name in fields if isinstance(getattr(value, name, None), list)}
    packed: dict[str, Any] = {"value": value.model_dump(exclude=names, exclude_unset=True)}
    if isinstance(value, ChatCompletionRequest | TokenizeChatRequest):
        packed["value"]["messages"] = [
            message.model_dump(exclude={"content"}, exclude_none=True) | {"content": message.text}
            for message in value.messages
        ]
    if isinstance(value, ResponseRequest) and isinstance(value.input, list):
        packed["value"]["input"] = [item.joined for item in value.input]
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
    """Return the value passed to `pack`. Token ids become arrays with 4 bytes per id, where a list takes 40."""
    name = packed.get("name")
    if name is None:
        return KINDS[kind].validate_python(packed["value"])
    value = KINDS[kind].validate_python({**packed["value"], name: [[0]] if packed["nested"] else [0]})
    lists, start = [], 0
    for length in packed["lengths"]:
        lists.append(array("I", token_ids[start : start + 4 * length]))
        start += 4 * length
    return value.model_copy(update={name: lists if packed["nested"] else lists[0]})
