"""`null` for an optional field means its default, in every part of every body, and the OpenAPI schema says so."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest
from fastapi import FastAPI
from orca_master.bodies.adapter_requests import LoadAdapterRequest, UnloadAdapterRequest
from orca_master.bodies.body import Body
from orca_master.bodies.lengths import Lengths
from orca_master.bodies.validation import KINDS, check_body
from orca_master.endpoint.application import create_app
from orca_master.endpoint.checked_route import KIND_OF_PATH
from orca_master.errors import RequestError
from support.scripted_engine import MODEL, Scripted, make_model

FUNCTION = {"name": "f"}
CALL = {"id": "1", "function": {"name": "f", "arguments": "{}"}}
TEXT_BLOCK = {"type": "text", "text": "a"}
ITEMS: list[dict[str, Any]] = [
    {"role": "user", "content": [{"type": "input_text", "text": "a"}]},
    {"role": "assistant", "content": [{"type": "output_text", "text": "a"}]},
    {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "1", "output": "a"},
    {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "a"}]},
]
BLOCKS: list[dict[str, Any]] = [
    {"role": "user", "content": [{**TEXT_BLOCK, "cache_control": {"type": "ephemeral"}}]},
    {
        "role": "assistant",
        "content": [{"type": "thinking", "thinking": "a"}, {"type": "tool_use", "id": "1", "name": "f", "input": {}}],
    },
    {
        "role": "user",
        "content": [{"type": "tool_result", "tool_use_id": "1", "content": [TEXT_BLOCK]}],
    },
]
MESSAGES: dict[str, Any] = {
    "messages": BLOCKS,
    "system": [TEXT_BLOCK],
    "tools": [{"name": "f", "input_schema": {}}],
    "tool_choice": {"type": "auto"},
    "thinking": {"type": "enabled"},
    "output_config": {},
}
BODIES: dict[str, dict[str, Any]] = {
    "completion": {"prompt": "a", "stream": True, "stream_options": {}},
    "chat": {
        "messages": [
            {"role": "user", "content": [TEXT_BLOCK]},
            {"role": "assistant", "tool_calls": [CALL]},
        ],
        "tools": [{"type": "function", "function": FUNCTION}],
        "tool_choice": {"type": "function", "function": FUNCTION},
        "stream": True,
        "stream_options": {},
        "prediction": {"type": "content", "content": "a"},
    },
    "messages": {**MESSAGES, "model": MODEL, "max_tokens": 1, "metadata": {}},
    "count_tokens": {**MESSAGES, "model": MODEL},
    "response": {
        "input": ITEMS,
        "tools": [{"type": "function", **FUNCTION}],
        "tool_choice": {"type": "function", **FUNCTION},
        "text": {},
        "reasoning": {},
        "stream": True,
        "stream_options": {},
    },
    "embedding": {"input": "a"},
    "score": {"text_1": "a", "text_2": ["b"]},
    "rerank": {"query": "a", "documents": ["b"]},
    "batch": {"input_file_id": "f", "endpoint": "/v1/completions", "completion_window": "24h"},
    "tokenize": {"messages": [{"role": "user", "content": "a"}], "tools": [{"type": "function", "function": FUNCTION}]},
    "detokenize": {"tokens": [1]},
}
TEXT = {"prompt": "a"}
SCORES: list[dict[str, Any]] = [{"queries": "a", "documents": ["b"]}, {"queries": ["a"], "items": "b"}]
NEEDED_BY_OTHERS = {
    "completion": {"CompletionRequest.stream"},
    "chat": {"ChatCompletionRequest.stream", "ChatCompletionRequest.tools"},
    "response": {"ResponseRequest.stream"},
}
"""Fields without which another field of the body is refused."""


@pytest.fixture(scope="module")
def app(tmp_path_factory) -> FastAPI:
    return create_app(Scripted(make_model(tmp_path_factory.mktemp("nulls"), ""), "").endpoint)


def with_null(value: Any, data: Any) -> Iterator[tuple[str, Any]]:
    """Yield `data`, of which `value` has been made, once with each optional field as null, with the field's name."""
    if isinstance(value, Body):
        for name, field in type(value).model_fields.items():
            if not field.is_required():
                yield f"{type(value).__name__}.{name}", {**data, name: None}
            if name in data:
                for where, changed in with_null(getattr(value, name), data[name]):
                    yield where, {**data, name: changed}
    elif isinstance(value, list) and isinstance(data, list):
        for place, entry in enumerate(value):
            for where, changed in with_null(entry, data[place]):
                yield where, [*data[:place], changed, *data[place + 1 :]]


def test_every_body_with_an_optional_field_has_an_example():
    required = {"load_adapter", "unload_adapter"}
    assert set(KINDS) - required == set(BODIES)
    for body in (LoadAdapterRequest, UnloadAdapterRequest):
        assert all(field.is_required() for field in body.model_fields.values())


@pytest.mark.parametrize(("kind", "body"), [*BODIES.items(), ("tokenize", TEXT), *(("score", body) for body in SCORES)])
def test_null_is_accepted_and_described(app, kind, body):
    path = next(path for path, other in KIND_OF_PATH.items() if other == kind)
    description = app.openapi()
    schema = description["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    validator = jsonschema.Draft202012Validator({**schema, "components": description["components"]})
    original = copy.deepcopy(body)
    validator.validate(body)
    refused, undescribed = set(), set()
    for where, changed in with_null(KINDS[kind].validate_python(body, context=Lengths(64)), original):
        try:
            check_body(kind, json.dumps(changed).encode(), Lengths(64))
        except RequestError:
            refused.add(where)
        if not validator.is_valid(changed):
            undescribed.add(where)
    assert undescribed == set()
    assert refused == NEEDED_BY_OTHERS.get(kind, set())


def test_a_required_field_is_not_null(app):
    schemas = app.openapi()["components"]["schemas"]
    for schema in schemas.values():
        jsonschema.Draft202012Validator.check_schema(schema)
    for name, field in (("CompletionRequest", "prompt"), ("MessagesRequest", "model"), ("ToolChoice", "type")):
        validator = jsonschema.Draft202012Validator(
            {**schemas[name]["properties"][field], "components": {"schemas": schemas}}
        )
        assert not validator.is_valid(None), (name, field)
