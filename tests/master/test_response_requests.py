"""Bodies of /v1/responses: what is not supported is refused with its field and the way out."""

from __future__ import annotations

import json
from typing import Any

import pytest
from orca_master.bodies.lengths import Lengths
from orca_master.bodies.response_requests import LOGPROBS, ResponseRequest
from orca_master.bodies.validation import check_body, pack, unpack
from orca_master.errors import RequestError

FUNCTION = {"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": True, "description": None}


def check(**fields: Any) -> ResponseRequest:
    body: ResponseRequest = check_body("response", json.dumps({"input": "a", **fields}).encode(), Lengths(1024))
    return body


def test_a_text_is_a_message_of_the_user():
    (item,) = check().items
    assert (item.type, item.role, item.content) == ("message", "user", "a")


def test_null_means_the_default():
    body = check(**dict.fromkeys(set(ResponseRequest.model_fields) - {"input"}))
    assert body == ResponseRequest(input="a")
    assert not body.wants_logprobs


@pytest.mark.parametrize(
    ("fields", "field", "words"),
    [
        ({"reasoning": {"effort": "most"}}, "reasoning", "'low'"),
        ({"reasoning": {"summary": "auto"}}, "reasoning", "reasoning.summary: this field is unknown or not supported"),
        ({"truncation": "last"}, "truncation", "'auto' or 'disabled'"),
        ({"input": []}, "input", "at least 1 item"),
        ({"input": 1}, "input", "valid string"),
        ({"input": [{"role": "user", "content": [{"type": "input_file"}]}]}, "input", "input.0.content.0: type"),
        ({"tools": [{"type": "web_search"}]}, "tools", "tools.0.type: Input should be 'function'"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools", "name"),
        ({"tool_choice": "any"}, "tool_choice", "'none', 'auto' or 'required'"),
        ({"stream_options": {}}, "stream_options", "only allowed with stream"),
        ({"stream": True, "stream_options": {"include_obfuscation": True}}, "stream_options", "False"),
        ({"top_logprobs": 1}, "top_logprobs", f"needs include: ['{LOGPROBS}']"),
        ({"include": ["reasoning.encrypted_content"]}, "include", LOGPROBS),
        ({"text": {"format": {"type": "json_schema", "name": "a"}}}, "text", "format.schema is missing"),
        ({"text": {"format": {"type": "json_schema", "schema": {}}}}, "text", "format.name is missing"),
        ({"text": {"format": {"type": "json_object", "schema": {}}}}, "text", "only allowed with json_schema"),
        ({"text": {"format": {"type": "xml"}}}, "text", "'text'"),
        ({"text": {"verbosity": "low"}}, "text", "'medium'"),
        ({"metadata": {str(number): "" for number in range(17)}}, "metadata", "at most 16"),
        ({"metadata": {"a": 1}}, "metadata", "valid string"),
        ({"max_output_tokens": 0}, "max_output_tokens", "greater than or equal to 1"),
        ({"temperature": 3}, "temperature", "less than or equal to 2"),
        ({"n": 2}, "n", "unknown or not supported"),
        ({"stop": ""}, "stop", "must not be empty"),
        (
            {"structured_outputs": {"regex": "a"}, "text": {"format": {"type": "json_object"}}},
            "structured_outputs",
            "not allowed together with text.format",
        ),
        ({"min_tokens": 9, "max_output_tokens": 8}, "min_tokens", "min_tokens: 9 exceeds max_output_tokens, 8"),
    ],
)
def test_what_is_refused_is_named(fields, field, words):
    with pytest.raises(RequestError) as refused:
        check(**fields)
    assert refused.value.field == field
    assert words in str(refused.value)


def test_fields_without_values_are_not_refused():
    check(background=False, reasoning={"effort": None, "summary": None}, conversation=None, max_tool_calls=None)


def test_a_large_body_is_the_same_after_its_process():
    """But for texts, which are joined, so that the event loop validates one part for each item."""

    def input_of(*texts: str) -> list[dict[str, Any]]:
        parts = [{"type": "input_text", "text": text} for text in texts]
        call_fields = {"call_id": "1", "name": "f", "arguments": "{}"}
        return [
            {"role": "user", "content": parts},
            {"type": "function_call", **call_fields},
            {"type": "function_call_output", "call_id": "1", "output": parts},
            {"type": "function_call_output", "call_id": "1", "output": "b"},
            {"type": "reasoning", "summary": [], "content": [part | {"type": "reasoning_text"} for part in parts]},
        ]

    body = check(
        input=input_of("a", "b"),
        tools=[FUNCTION],
        tool_choice={"type": "function", "name": "f"},
        text={"format": {"type": "json_schema", "name": "a", "schema": {"type": "object"}}},
        include=[LOGPROBS],
        metadata={"a": "b"},
    )
    packed, token_ids = pack(body)
    same = unpack("response", json.loads(json.dumps(packed)), token_ids)
    assert same.items[0].content == same.items[2].output == "ab"
    assert same.items[4] == check(input=input_of("ab")).items[4]
    assert same.model_copy(update={"input": "a"}) == body.model_copy(update={"input": "a"})
    assert same.model_fields_set == body.model_fields_set
