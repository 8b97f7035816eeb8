"""Bodies of requests: the first error ends the validation, and says little about a large input."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from orca_master.bodies import validation as bodies
from orca_master.bodies.lengths import MAX_DEPTH, MAX_ENTRIES, Lengths
from orca_master.bodies.logit_bias import MAX_BIASES
from orca_master.bodies.openai_requests import MAX_MESSAGES
from orca_master.bodies.validation import MAX_MESSAGE, check_body
from orca_master.errors import CONTEXT_EXCEEDED, RequestError

CONTEXT = 1024
LONGEST = "this model's maximum context length is"
MESSAGE = {"role": "user", "content": "a"}
MANY = 100_000


def check(kind: str, body: Any) -> Any:
    return check_body(kind, json.dumps(body).encode(), Lengths(CONTEXT))


def beginning(value: dict[str, Any]) -> str:
    """Return the first 40 characters of the JSON of a body; most of a large body is not written."""
    return "".join(itertools.islice(json.JSONEncoder().iterencode(value), 40))[:40]


@pytest.mark.parametrize(
    ("kind", "body", "field", "words"),
    [
        ("completion", {"prompt": [-1] * MANY}, "prompt", f"{MANY} tokens: {LONGEST} {CONTEXT}"),
        ("completion", {"prompt": [-1] * 1000}, "prompt", "prompt.0: Input should be greater than or equal to 0"),
        ("completion", {"prompt": [[-1] * 1000] * 1000}, "prompt", "prompt.0.0: Input should be greater than"),
        ("completion", {"prompt": [[1] * 1025]}, "prompt", f"prompt.0: 1025 tokens: {LONGEST}"),
        ("completion", {"prompt": [[]] * MANY}, "prompt", "at most 1024 items"),
        ("completion", {"prompt": [[]] * 1024}, "prompt", "prompt.0: List should have at least 1 item"),
        ("completion", {"prompt": ["a"] * MANY}, "prompt", "at most 1024 items"),
        ("completion", {"prompt": ["a", *[1] * 1000]}, "prompt", "prompt.1: Input should be a valid string"),
        ("completion", {"prompt": "a" * ((1 << 18) + 1)}, "prompt", "characters exceed the limit"),
        ("completion", {"prompt": [1], "stop": [""] * MANY}, "stop", "at most 16 items"),
        ("completion", {"prompt": [1], "stop": "a" * 1025}, "stop", "at most 1024 characters"),
        ("completion", {"prompt": [1], "stop": 1}, "stop", "stop: Input should be a valid"),
        ("completion", {"prompt": [1], "stop_token_ids": ["x"] * MANY}, "stop_token_ids", "at most 16 items"),
        ("completion", {"prompt": [1], "logit_bias": dict.fromkeys(map(str, range(MANY)), "x")}, "logit_bias",
         f"at most {MAX_BIASES} items after validation, not {MANY}"),
        ("completion", {"prompt": [1], "logit_bias": {f"x{number}": "x" for number in range(MAX_BIASES)}}, "logit_bias",
         "logit_bias.x0: String should match pattern"),
        ("completion", {"prompt": [1], "logit_bias": {"1": 1, "2": 101}}, "logit_bias", "less than or equal to 100"),
        ("completion", {"prompt": [1]} | {f"x{number}": 1 for number in range(MANY)}, "x0", "unknown"),
        ("completion", {"prompt": [1], "x" * MANY: 1}, "x" * 64, "unknown"),
        ("completion", {"prompt": [1], "user": "x" * MANY}, "user", "at most 4096 characters"),
        ("completion", {"prompt": [1], "stream_options": {f"x{number}": 1 for number in range(MANY)}}, "stream_options",
         "stream_options.x0: this field is unknown"),
        ("chat", {"messages": [{"role": "robot"}] * MANY}, "messages", f"at most {MAX_MESSAGES} items"),
        ("chat", {"messages": [{"role": "robot"}] * MAX_MESSAGES}, "messages", "messages.0.role: Input should be"),
        ("chat", {"messages": [{"role": "user", "content": [{"type": "audio"}] * 1000}]}, "messages", "content.0.type"),
        ("chat", {"messages": [{"role": "user", "content": [1] * 1025}]}, "messages", "at most 1024 items"),
        ("chat", {"messages": [{"role": "user", "content": [1] * MANY}]}, "messages", f"{MANY} parts and calls"),
        ("chat", {"messages": [{"role": "user", "content": "a" * 1024}] * 257}, "messages", "exceed the limit"),
        ("chat", {"messages": [MESSAGE], "chat_template_kwargs": {"a": "b" * 65536}}, "chat_template_kwargs", "65536"),
        ("tokenize", {"messages": [{"role": "robot"}] * MAX_MESSAGES}, "messages", "messages.0.role: Input should be"),
        ("tokenize", {"prompt": 1}, "prompt", "prompt: Input should be a valid string"),
        ("detokenize", {"tokens": [-1] * MANY}, "tokens", "maximum context length"),
        ("detokenize", {"tokens": [-1] * 1000}, "tokens", "tokens.0: Input should be greater"),
        ("score", {"text_1": "a", "text_2": "b", "str": 1}, "str", "str: this field is unknown"),
        ("score", {"queries": "a", "items": "b", "ids[]": 1}, "ids[]", "ids[]: this field is unknown"),
        ("rerank", {"query": "a", "documents": "b", "str": 1}, "str", "str: this field is unknown"),
        ("tokenize", {"prompt": "a", "str": 1}, "str", "str: this field is unknown"),
        ("completion", {"prompt": "a", "stream_options": {"str": 1}}, "stream_options", "stream_options.str: this"),
    ],
    ids=lambda value: beginning(value) if isinstance(value, dict) else "",
)  # fmt: skip
def test_one_error_of_many(monkeypatch, kind, body, field, words):
    """A union of two types may have an error for each; more are never collected."""
    counts = []

    def counting(errors: list) -> RequestError:
        counts.append(len(errors))
        return described(errors)

    described = bodies.described
    monkeypatch.setattr(bodies, "described", counting)
    with pytest.raises(RequestError) as refused:
        check(kind, body)
    assert words in str(refused.value)
    assert refused.value.field == field
    assert len(str(refused.value)) <= MAX_MESSAGE + 200
    assert counts[0] <= 3


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"nan", b"\xff", b"[" * 100_000, b'{"a":' * 100_000, b'{"prompt":' + b"9" * 5000 + b"}", b"1" * 100_000,
     b'{"prompt": "a", "chat_template_kwargs": ' + b"[" * 900 + b"]" * 900 + b"}"],
    ids=lambda body: repr(body[:12]),
)  # fmt: skip
def test_no_json(body):
    with pytest.raises(RequestError) as refused:
        check_body("completion", body, Lengths(CONTEXT))
    assert len(str(refused.value)) <= MAX_MESSAGE + 200


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("completion", {"prompt": [1] * CONTEXT}),
        ("completion", {"prompt": [[1] * 10] * 1024}),
        ("completion", {"prompt": ["a"] * 1024, "user": None, "logit_bias": None, "unknown": None}),
        ("completion", {"prompt": "a" * (1 << 18), "stop": ["a" * 1024] * 16}),
        ("completion", {"prompt": [1], "logit_bias": dict.fromkeys(map(str, range(MAX_BIASES)), 1)}),
        ("chat", {"messages": [MESSAGE] * MAX_MESSAGES, "chat_template_kwargs": {"a": [1, {"b": None}]}}),
        ("tokenize", {"messages": [MESSAGE]}),
        ("tokenize", {"prompt": "a"}),
        ("detokenize", {"tokens": []}),
    ],
    ids=lambda value: json.dumps(value)[:40] if isinstance(value, dict) else "",
)
def test_what_is_within_the_bounds_is_taken(kind, body):
    checked = check(kind, body)
    for name, value in body.items():
        if value is not None and name != "messages":
            assert getattr(checked, name) == value


def test_the_prompt_is_validated_once(monkeypatch):
    """Its first entry decides which type it is checked against."""
    seen = []
    monkeypatch.setattr(Lengths, "check_tokens", lambda _, count: seen.append(count))
    with pytest.raises(RequestError):
        check("completion", {"prompt": [[1], [2, 3], ["x"], [4]]})
    assert seen == [1, 2, 1]


NESTED = {
    "tools.0.function.parameters": lambda nested: {
        "tools": [{"type": "function", "function": {"name": "add", "parameters": {"a": nested}}}]
    },
    "chat_template_kwargs": lambda nested: {"chat_template_kwargs": {"a": nested}},
    "response_format": lambda nested: {
        "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"a": nested}}}
    },
    "structured_outputs": lambda nested: {"structured_outputs": {"json": {"a": nested}}},
}
"""By place: the fields with a value of any form."""


@pytest.mark.parametrize("place", NESTED)
@pytest.mark.parametrize("brackets", ["[]", "{}"])
def test_values_of_any_form_have_a_bounded_depth(place, brackets):
    """Below the depths at which pydantic and json fail, with a journal and on the stack of a request."""

    def check(depth: int) -> Any:
        nested: Any = 1
        for _ in range(depth - 1):  # in an object
            nested = [nested] if brackets == "[]" else {"items": nested}
        body = {"messages": [{"role": "user", "content": "a"}]} | NESTED[place](nested)
        return check_body("chat", json.dumps(body).encode(), Lengths(1024))

    value = check(MAX_DEPTH)
    assert value.model_dump(mode="json")
    with pytest.raises(RequestError, match=f"{MAX_DEPTH} levels") as refused:
        check(MAX_DEPTH + 1)
    assert str(refused.value).startswith(f"{place}: ")
    assert refused.value.field == place.partition(".")[0]


def test_arguments_of_a_call_beyond_the_depth_are_a_text():
    """As all that are no JSON object: chat templates get the text."""

    def values(depth: int) -> Any:
        arguments = f'{{"a": {"[" * (depth - 1)}{"]" * (depth - 1)}}}'
        call = {"id": "1", "function": {"name": "add", "arguments": arguments}}
        content = json.dumps({"messages": [{"role": "assistant", "tool_calls": [call]}]}).encode()
        body = check_body("chat", content, Lengths(1024))
        assert body.model_dump(mode="json")
        return body.messages[0].tool_calls[0].function.values

    assert isinstance(values(MAX_DEPTH), dict)
    for depth in (MAX_DEPTH + 1, 10_000):
        assert isinstance(values(depth), str)


@pytest.mark.parametrize(
    ("kind", "body", "code"),
    [
        ("completion", {"prompt": [1] * (CONTEXT + 1)}, CONTEXT_EXCEEDED),
        ("completion", {"prompt": [[1], [1] * (CONTEXT + 1)]}, CONTEXT_EXCEEDED),
        ("completion", {"prompt": "a" * (1 << 20)}, CONTEXT_EXCEEDED),
        ("chat", {"messages": [{"role": "user", "content": "a" * (1 << 20)}]}, CONTEXT_EXCEEDED),
        ("completion", {"prompt": [-1]}, None),
    ],
)
def test_programs_learn_that_a_prompt_is_too_long(kind, body, code):
    """By OpenAI's code, and by words that they look for."""
    with pytest.raises(RequestError) as refused:
        check_body(kind, json.dumps(body).encode(), Lengths(CONTEXT))
    assert refused.value.code == code
    assert ("this model's maximum context length is 1024 tokens" in str(refused.value)) == (code is not None)


def _message(parts: int, calls: int, kind: str = "text") -> dict[str, Any]:
    call = {"id": "", "function": {"name": "", "arguments": ""}}
    fields = {"tool_calls": [call] * calls} if calls else {}
    return {"role": "assistant", "content": [{"type": kind, "text": ""}] * parts, **fields}


@pytest.mark.parametrize(
    ("kind", "field", "entries", "count"),
    [
        ("chat", "messages", [_message(1024, 0)] * 16, 16384),
        ("chat", "messages", [_message(1024, 0)] * 16 + [_message(1, 0)], 16385),
        ("chat", "messages", [_message(64, 64)] * 128, 16384),
        ("chat", "messages", [_message(0, 128)] * 129, 16512),
        ("tokenize", "messages", [_message(1000, 0)] * 17, 17000),
        ("response", "input", [_message(1024, 0, "output_text")] * 16, 16384),
        ("response", "input", [_message(1000, 0, "output_text")] * 17, 17000),
    ],
    ids=str,
)
def test_parts_and_calls_are_bounded_together(kind, field, entries, count):
    """The event loop handles them one by one, also those that a process has checked."""
    if count <= MAX_ENTRIES:
        check(kind, {field: entries})
        return
    with pytest.raises(RequestError, match=f"{field}: {count} parts and calls together, at most 16384") as refused:
        check(kind, {field: entries})
    assert refused.value.field == field


@pytest.mark.parametrize(
    ("kind", "body", "tool"),
    [
        ("chat", {"messages": [MESSAGE]}, lambda name, schema: {
            "type": "function", "function": {"name": name, "parameters": schema}}),
        ("tokenize", {"messages": [MESSAGE]}, lambda name, schema: {
            "type": "function", "function": {"name": name, "parameters": schema}}),
        ("response", {"input": "a"}, lambda name, schema: {"type": "function", "name": name, "parameters": schema}),
        ("messages", {"model": "m", "max_tokens": 1, "messages": [MESSAGE]}, lambda name, schema: {
            "name": name, "input_schema": schema}),
    ],
    ids=["chat", "tokenize", "response", "messages"],
)  # fmt: skip
def test_tools_are_bounded_together(kind, body, tool):
    """The schema of each is bounded, too."""
    schema = {"enum": ["a" * 60_000]}
    assert len(check(kind, body | {"tools": [tool(f"f{number}", schema) for number in range(16)]}).tools) == 16
    with pytest.raises(RequestError, match=r"tools: 10[0-9]{5} bytes of JSON in all tools together") as refused:
        check(kind, body | {"tools": [tool(f"f{number}", schema) for number in range(18)]})
    assert refused.value.field == "tools"


def test_fields_without_effect_are_accepted_in_a_chat_as_in_a_response():
    """Clients send them whatever the server is; values that would have an effect at OpenAI are refused."""
    same = {"metadata": {"a": "b"}, "service_tier": "auto", "prompt_cache_key": "k", "safety_identifier": "u"}
    check("response", {"input": "a", **same})
    of_chat = {"store": False, "modalities": ["text"], "verbosity": "medium"}
    check(
        "chat",
        {"messages": [MESSAGE], "stream": True, "stream_options": {"include_obfuscation": False}, **same, **of_chat},
    )
    for field, value in (("store", True), ("modalities", ["audio"]), ("verbosity", "low"), ("service_tier", "flex")):
        with pytest.raises(RequestError, match=f"^{field}") as refused:
            check("chat", {"messages": [MESSAGE], field: value})
        assert refused.value.field == field


def test_bodies_of_open_webui():
    """tests/system/test_open_webui.py sends them to a server."""
    file = Path(__file__).parents[1] / "system" / "open_webui.yaml"
    requests = yaml.safe_load(file.read_text(encoding="utf-8"))
    assert len(requests["streams"]) + len(requests["tasks"]) > 5
    for body in [*({"stream": True, **body} for body in requests["streams"].values()), *requests["tasks"].values()]:
        assert check("chat", {"model": "m", **body}).messages


@pytest.mark.parametrize("content", ["a", [], [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]])
def test_a_predicted_output_is_accepted_and_goes_no_further(content):
    """Not into a journal, for one: it has no effect."""
    checked = check("chat", {"messages": [MESSAGE], "prediction": {"type": "content", "content": content}})
    assert "prediction" not in checked.model_dump(exclude_unset=True)
    check("chat", {"messages": [MESSAGE], "prediction": None})


@pytest.mark.parametrize(
    ("prediction", "words"),
    [
        ("def f():", "prediction: Input should be"),
        ({"type": "content"}, "prediction.content: Field required"),
        ({"content": "a"}, "prediction.type: Field required"),
        ({"type": "text", "content": "a"}, "prediction.type: Input should be 'content'"),
        ({"type": "content", "content": None}, "prediction.content: Input should be"),
        ({"type": "content", "content": [{"type": "image_url"}]}, "prediction.content.0.type: Input should be 'text'"),
        ({"type": "content", "content": "a", "more": 1}, "prediction.more: this field is unknown"),
    ],
)
def test_the_form_of_a_predicted_output_is_checked(prediction, words):
    with pytest.raises(RequestError) as refused:
        check("chat", {"messages": [MESSAGE], "prediction": prediction})
    assert str(refused.value).startswith(words)
    assert refused.value.field == "prediction"
