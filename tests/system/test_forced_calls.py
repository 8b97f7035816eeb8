"""tool_choice required and named, and strict functions, over HTTP: every call that ends has arguments of its schema."""

from __future__ import annotations

import concurrent.futures
import json
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import openai
import pydantic
import pytest
from support.checkpoints import CHAT_TEMPLATE, llama_like, randomise
from support.grammars import byte_tokenizer
from support.json_schemas import UNSUPPORTED, is_prefix_of_json, schemas
from support.once import once
from support.served import serve

pytestmark = pytest.mark.long

NAME = "model"
MARKERS = ("<tool_call>", "</tool_call>")
BEGIN = byte_tokenizer(MARKERS).token_to_id(MARKERS[0])
HELLO: list[Any] = [{"role": "user", "content": "Hi"}]
SCHEMAS = [schema for schema in schemas(29 * 3, seed=2) if schema.get("type") == "object" or "$ref" in schema]
EMPTY = {"type": "object", "additionalProperties": False}


def function(name: str, parameters: dict[str, Any] | None, **options: Any) -> dict[str, Any]:
    entry = {"name": name, **options} | ({} if parameters is None else {"parameters": parameters})
    return {"type": "function", "function": entry}


def named(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


@pytest.fixture(scope="module")
def served(run_folder):
    """Yield a server of random weights with a token for every byte and for the markers of calls."""

    def make(folder: Path) -> None:
        options = {"vocab_size": 264, "num_hidden_layers": 2, "max_position_embeddings": 1024}
        randomise(llama_like("llama", 4, 64, tied=False, **options), 3).save_pretrained(folder)
        byte_tokenizer(MARKERS).save(str(folder / "tokenizer.json"))
        (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE)

    model = once(run_folder / "checkpoints" / "every-byte-and-markers", make)
    options = ("--max-batch-size", "16", "--dtype", "float32", "--tool-call-parser", "hermes")
    with serve(model, "--served-model-name", NAME, *options) as server:
        yield server


@pytest.fixture(scope="module")
def client(served):
    return openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0, timeout=120)


def ask(client: openai.OpenAI, **options: Any) -> Any:
    return client.chat.completions.create(
        **{"model": NAME, "messages": HELLO, "max_tokens": 400, "temperature": 1} | options
    )


def calls_of(choice: Any) -> list[tuple[str, str, str]]:
    return [(call.id, call.function.name, call.function.arguments) for call in choice.message.tool_calls or []]


def streamed(client: openai.OpenAI, **options: Any) -> list[tuple[list[tuple[str, str, str]], str, str]]:
    """Return calls, content and finish reason of each choice of a stream."""
    count = options.get("n", 1)
    calls: list[list[list[str]]] = [[] for _ in range(count)]
    content, reasons = [""] * count, [""] * count
    for chunk in ask(client, stream=True, **options):
        (choice,) = chunk.choices
        content[choice.index] += choice.delta.content or ""
        reasons[choice.index] = choice.finish_reason or reasons[choice.index]
        for delta in choice.delta.tool_calls or []:
            of_choice = calls[choice.index]
            if delta.index == len(of_choice):
                assert delta.type == "function"
                of_choice.append([delta.id, delta.function.name, ""])
            else:
                assert delta.id is None
                assert delta.function.name is None
            of_choice[delta.index][2] += delta.function.arguments
    return [
        ([(entry[0], entry[1], entry[2]) for entry in of_choice], text, reason)
        for of_choice, text, reason in zip(calls, content, reasons, strict=True)
    ]


def validate(calls: list[tuple[str, str, str]], parameters: dict[str, Any], is_cut: bool) -> int:
    """Assert that arguments match their schemas, but the last of a cut answer; return how many match."""
    for place, (_, name, arguments) in enumerate(calls):
        if is_cut and place == len(calls) - 1:
            assert not arguments or is_prefix_of_json(arguments), arguments
            return place
        jsonschema.validate(json.loads(arguments), parameters[name], cls=jsonschema.Draft202012Validator)
    return len(calls)


def tools_for(number: int, **options: Any) -> tuple[list[dict[str, Any]], dict[str, dict[str, Any]]]:
    """Return four functions, one of them without parameters, and the schemas of their arguments."""
    chosen = {f"f{place}": SCHEMAS[(3 * number + place) % len(SCHEMAS)] for place in range(3)}
    tools = [function(name, schema, **options) for name, schema in chosen.items()]
    return [*tools, function("now", None, **options)], {**chosen, "now": EMPTY}


def without_ids(calls: list[tuple[str, str, str]]) -> list[tuple[str, str]]:
    return [call[1:] for call in calls]


def test_required_calls_validate_and_streams_agree(client):
    def one(number: int) -> int:
        tools, parameters = tools_for(number)
        options = {"tools": tools, "tool_choice": "required", "seed": number, "n": 1 + number % 2}
        options |= {"parallel_tool_calls": number % 3 > 0, "logprobs": number % 4 == 0}
        count = 0
        answer = ask(client, **options)
        for choice, (calls, content, reason) in zip(answer.choices, streamed(client, **options), strict=True):
            whole = calls_of(choice)
            assert (without_ids(whole), choice.finish_reason) == (without_ids(calls), reason)
            assert content == ""
            assert not choice.message.content
            assert len({call[0] for call in whole}) == len(whole) > 0
            assert len(whole) == 1 or options["parallel_tool_calls"]
            assert reason in ("tool_calls", "length")
            assert bool(choice.logprobs) == options["logprobs"]
            count += validate(whole, parameters, reason == "length")
        return count

    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        assert sum(threads.map(one, range(10))) > 10


def test_a_named_function_is_called_once(client):
    def one(number: int) -> int:
        tools, parameters = tools_for(number)
        name = f"f{number % 3}"
        options = {"tools": tools, "tool_choice": named(name), "seed": number}
        (choice,) = ask(client, **options).choices
        calls = calls_of(choice)
        ((of_stream, content, reason),) = streamed(client, **options)
        assert (without_ids(of_stream), reason, content) == (without_ids(calls), choice.finish_reason, "")
        assert [call[1] for call in calls] == [name]
        assert reason in ("stop", "length")
        return validate(calls, parameters, reason == "length")

    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        assert sum(threads.map(one, range(8))) > 5
    (choice,) = ask(client, tools=tools_for(0)[0], tool_choice=named("now")).choices
    assert [(name, json.loads(arguments)) for _, name, arguments in calls_of(choice)] == [("now", {})]


def test_strict_functions_of_an_answer_that_the_model_chooses(client):
    """Random weights, with a bias, begin a call by its marker in most answers, and then cannot but call."""

    def one(number: int) -> tuple[int, int]:
        tools, parameters = tools_for(number, strict=True)
        options = {"tools": tools, "seed": number, "logit_bias": {str(BEGIN): 4}}
        (choice,) = ask(client, **options).choices
        calls = calls_of(choice)
        ((of_stream, content, reason),) = streamed(client, **options)
        assert (without_ids(of_stream), reason) == (without_ids(calls), choice.finish_reason)
        assert content == (choice.message.content or "")
        if reason != "length":  # a call that is cut before its name stays text
            assert not any(marker in content for marker in MARKERS), content
        assert reason in ("length", "tool_calls" if calls else "stop")
        return validate(calls, parameters, reason == "length"), bool(content)

    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        calls, contents = map(sum, zip(*threads.map(one, range(8)), strict=True))
    assert calls > 5
    assert contents > 3


def test_a_cut_call_has_a_beginning_of_arguments(client):
    schema = {"type": "object", "properties": {"s": {"type": "string", "pattern": "^[a-z]{50}$"}}, "required": ["s"]}
    tools = [function("say", schema)]
    for choice, head in (("required", '[{"name":"say","parameters":'), (named("say"), "")):
        for max_tokens in (1, 8, len(head) + 12):
            (answer,) = ask(client, tools=tools, tool_choice=choice, max_tokens=max_tokens).choices
            calls = calls_of(answer)
            assert answer.finish_reason == "length"
            assert not answer.message.content
            assert len(calls) <= 1
            validate(calls, {"say": schema}, is_cut=True)
        (answer,) = ask(client, tools=tools, tool_choice=choice, stop="s").choices
        assert answer.finish_reason == "stop", "a stop string cuts a call, too"


class Add(pydantic.BaseModel):
    """Adds two numbers."""

    first: int = pydantic.Field(ge=0, le=99)
    second: int = pydantic.Field(ge=0, le=99)


def test_the_official_client_parses_calls_into_models(client):
    tools: Any = [openai.pydantic_function_tool(Add, name="add")]
    for choice in ("required", named("add")):
        options: Any = {"model": NAME, "messages": HELLO, "tools": tools, "tool_choice": choice, "seed": 1}
        options |= {"parallel_tool_calls": False, "max_tokens": 600}
        (call,) = client.chat.completions.parse(**options).choices[0].message.tool_calls
        assert isinstance(call.function.parsed_arguments, Add)
        with client.chat.completions.stream(**options) as events:
            (same,) = events.get_final_completion().choices[0].message.tool_calls
        assert same.function.parsed_arguments == call.function.parsed_arguments


def test_an_answer_is_a_model_of_the_client_or_calls(client):
    options: Any = {"model": NAME, "messages": HELLO, "response_format": Add, "seed": 1, "max_tokens": 600}
    options |= {"tools": [openai.pydantic_function_tool(Add, name="add")], "parallel_tool_calls": False}
    kinds = set()
    for bias in (-100, 0, 100):
        (choice,) = client.chat.completions.parse(**options, logit_bias={str(BEGIN): bias}).choices
        message = choice.message
        for call in message.tool_calls or []:
            assert isinstance(call.function.parsed_arguments, Add)
        assert choice.finish_reason == ("tool_calls" if message.tool_calls else "stop")
        assert bool(message.tool_calls) != isinstance(message.parsed, Add)
        kinds.add(choice.finish_reason)
    assert kinds == {"stop", "tool_calls"}


REQUIRED = {"tools": [function("f", None)], "tool_choice": "required"}
INVALID = {
    "unknown function": ({**REQUIRED, "tool_choice": named("g")}, "tool_choice: tools has no function 'g'"),
    "no tools": ({"tool_choice": "required"}, "tool_choice: needs tools"),
    "structured_outputs": (
        {"tools": [function("f", None, strict=True)], "structured_outputs": {"regex": "a"}},
        "structured_outputs: is not allowed together with tool_choice required, a named function, or a strict function",
    ),
    "no object": (
        {"tools": [function("f", None), function("g", {"type": "array"})], "tool_choice": "required"},
        "tools.1.function.parameters: the arguments of a function are an object",
    ),
    "long": (
        {"tools": [function(f"f{i}", {"title": "x" * 60_000}) for i in range(3)], "tool_choice": "required"},
        "tools: the list of functions cannot be compiled: it has more than 131072 bytes",
    ),
    "response_format": (
        {
            "tools": [function("f", None)],
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "a", "schema": {"properties": {"a": {"uniqueItems": True}}}},
            },
        },
        "response_format: the schema cannot be compiled: #/properties/a: ",
    ),
}


@pytest.mark.parametrize("name", INVALID)
def test_invalid_requests_are_refused_with_the_field(served, name):
    body, message = INVALID[name]
    answer = httpx.post(f"{served.url}/v1/chat/completions", json={"messages": HELLO, **body})
    error = answer.json()["error"]
    assert answer.status_code == 400, error
    assert error["message"].startswith(message)
    assert (error["type"], error["param"]) == ("invalid_request_error", message.partition(":")[0].partition(".")[0])


def test_schemas_that_cannot_be_compiled_are_refused_with_their_place(served):
    for schema in UNSUPPORTED:
        parameters = {"type": "object", "properties": {"a": {"type": "array", "items": schema}}}
        tools = [function("f", None), function("g", parameters, strict=True)]
        for choice in ("required", named("g"), "auto"):
            body = {"messages": HELLO, "tools": tools, "tool_choice": choice}
            answer = httpx.post(f"{served.url}/v1/chat/completions", json=body)
            error = answer.json()["error"]
            assert (answer.status_code, error["param"]) == (400, "tools"), error
            place = "tools.1.function.parameters: the schema cannot be compiled: #/properties/a/items: "
            assert error["message"].startswith(place)
