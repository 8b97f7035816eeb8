"""The form in which a response is stored, and what is read from it. Pure functions.

JSON with `response`, the response object, and `input`, the items of its request: each with an id, texts as parts.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from pydantic import TypeAdapter

from orca_master.bodies.lengths import MAX_ENTRIES
from orca_master.bodies.response_items import (
    FunctionCallItem,
    FunctionCallOutputItem,
    InputItem,
    MessageItem,
    ReasoningItem,
    text_of,
)
from orca_master.endpoint.response_objects import ResponseObject, failed_response, wire_json
from orca_master.endpoint.response_store import FoundResponse, Phase
from orca_master.errors import RequestError

_ITEMS: TypeAdapter[list[InputItem]] = TypeAdapter(list[InputItem])
LOST = "the API process that generated the response has ended: send the request again"


def record(response: ResponseObject, items: Sequence[InputItem]) -> bytes:
    """Return a response and the items of its request as JSON."""
    suffix = response["id"].rpartition("_")[2]
    wire = [_wire(item, f"{suffix}i{number:04x}") for number, item in enumerate(items)]
    return wire_json({"response": response, "input": wire}).encode()


def response_of(found: FoundResponse) -> ResponseObject:
    """Return the response object of a stored response, with the status of its phase."""
    response: ResponseObject = json.loads(found.data)["response"]
    match found.phase:
        case Phase.IN_PROGRESS:
            return {**response, "status": "in_progress"}
        case Phase.CANCELLED:
            return {**response, "status": "cancelled"}
        case Phase.LOST:
            return failed_response(response, "server_error", LOST)
    return response


def input_of(data: bytes) -> list[dict[str, Any]]:
    """Return the items of the request of a record."""
    items: list[dict[str, Any]] = json.loads(data)["input"]
    return items


def conversation_of(records: Sequence[bytes]) -> list[InputItem]:
    """Return the input and output items of consecutive records; raise RequestError for more than MAX_ENTRIES."""
    items: list[dict[str, Any]] = []
    for data in records:
        value = json.loads(data)
        items += [*value["input"], *value["response"]["output"]]
        if len(items) > MAX_ENTRIES:
            message = f"the conversation has more than {MAX_ENTRIES} items: send the last ones in input"
            raise RequestError(f"previous_response_id: {message}", "previous_response_id")
    return _ITEMS.validate_python(items)


def _wire(item: InputItem, suffix: str) -> dict[str, Any]:
    """Return an item without log probabilities and other fields that are not read."""
    fields: dict[str, Any]
    match item:
        case MessageItem(role="assistant"):
            part = {"type": "output_text", "text": text_of(item.content), "annotations": []}
            prefix, fields = "msg", {"type": "message", "role": item.role, "content": [part]}
        case MessageItem():
            part = {"type": "input_text", "text": text_of(item.content)}
            prefix, fields = "msg", {"type": "message", "role": item.role, "content": [part]}
        case FunctionCallItem():
            fields = {"type": item.type, "call_id": item.call_id, "name": item.name, "arguments": item.arguments}
            prefix = "fc"
        case FunctionCallOutputItem():
            prefix, fields = "fco", {"type": item.type, "call_id": item.call_id, "output": text_of(item.output)}
        case ReasoningItem():
            content = [{"type": "reasoning_text", "text": item.text}]
            prefix, fields = "rs", {"type": item.type, "summary": [], "content": content}
    return {**fields, "id": item.id or f"{prefix}_{suffix}", "status": item.status or "completed"}
