"""Structured output over HTTP: every answer that ends by itself matches, alone and beside others, also after faults."""

from __future__ import annotations

import asyncio
import concurrent.futures
import json
import os
import re
import signal
import threading
from collections.abc import Callable, Sequence
from typing import Any, Literal

import httpx
import jsonschema
import openai
import pydantic
import pytest
from support.checkpoints import with_long_context, with_tokenizer
from support.every_byte import every_byte_model
from support.json_schemas import HOSTILE, UNSUPPORTED, is_prefix_of_json, schemas
from support.resuming import Transcript
from support.resuming import stream as resume
from support.served import Served, serve, worker_pid

NAME = "llama-head80-untied"
MAX_TOKENS = 600
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}


def of_schema(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}


def check(text: str, finish_reason: str | None, schema: dict[str, Any]) -> bool:
    """Assert that a text matches, or that it begins like an answer that max_tokens cut; return True if it matches.

    Formats are not checked: llguidance enforces their syntax, by which there are leap seconds and 30 February.
    """
    if finish_reason == "length":
        assert is_prefix_of_json(text), text
        return False
    assert finish_reason == "stop"
    jsonschema.validate(json.loads(text), schema, cls=jsonschema.Draft202012Validator)
    return True


@pytest.fixture(scope="module")
def model(run_folder):
    return every_byte_model(run_folder)


@pytest.fixture(scope="module")
def served(model):
    with serve(model, "--served-model-name", NAME, "--max-batch-size", "16", "--dtype", "float32") as server:
        yield server


@pytest.fixture(scope="module")
def client(served):
    return openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0, timeout=60)


def complete(url: str, **body: Any) -> dict[str, Any]:
    everything = {"prompt": "Once", "max_tokens": MAX_TOKENS, "temperature": 1, "seed": 5, **body}
    answer = httpx.post(f"{url}/v1/completions", json=everything, timeout=120)
    assert answer.status_code == 200, answer.text
    return answer.json()


def stream(url: str, **body: Any) -> tuple[str, str]:
    """Return text and finish reason of a stream."""
    everything = {"prompt": "Once", "max_tokens": MAX_TOKENS, "temperature": 1, "seed": 5, "stream": True, **body}
    text, reason = "", ""
    with httpx.stream("POST", f"{url}/v1/completions", json=everything, timeout=120) as answer:
        for line in answer.iter_lines():
            if line.startswith("data: {"):
                event = json.loads(line.removeprefix("data: "))
                assert "error" not in event, (event, body)
                (choice,) = event["choices"]
                text, reason = text + choice["text"], choice["finish_reason"] or reason
    return text, reason


class Step(pydantic.BaseModel):
    """A part of an answer."""

    number: Literal[1, 2, 3]
    kind: Literal["add", "remove"]


class Plan(pydantic.BaseModel):
    """An answer."""

    urgent: bool
    first: Step
    second: Step | None


@pytest.mark.long
def test_the_official_client_parses_an_answer_into_a_pydantic_model(client):
    answer = client.chat.completions.parse(
        model=NAME, messages=[{"role": "user", "content": "Hi"}], response_format=Plan, max_tokens=MAX_TOKENS, seed=1
    )
    (choice,) = answer.choices
    assert isinstance(choice.message.parsed, Plan)
    assert choice.finish_reason == "stop"
    with client.chat.completions.stream(
        model=NAME, messages=[{"role": "user", "content": "Hi"}], response_format=Plan, max_tokens=MAX_TOKENS, seed=1
    ) as events:
        final = events.get_final_completion()
    assert final.choices[0].message.parsed == choice.message.parsed


def run_suite(url: str, suite: list[dict[str, Any]]) -> int:
    """Complete every schema, half of them as streams; return how many answers max_tokens cut."""

    def one(numbered: tuple[int, dict[str, Any]]) -> bool:
        number, schema = numbered
        body = {"response_format": of_schema(schema), "seed": number}
        if number % 2:
            return check(*stream(url, **body), schema)
        (choice,) = complete(url, **body)["choices"]
        return check(choice["text"], choice["finish_reason"], schema)

    with concurrent.futures.ThreadPoolExecutor(16) as threads:
        return list(threads.map(one, enumerate(suite))).count(False)


def test_answers_to_schemas_of_every_kind_validate(served):
    assert run_suite(served.url, schemas(29, seed=1)) <= 2


@pytest.mark.exhaustive
def test_answers_to_three_hundred_schemas_validate(served):
    """290 of 300 compile; the others have keywords that cannot be enforced, and are refused with the place."""
    suite = schemas(290)
    num_cut = run_suite(served.url, suite)
    print(f"{num_cut} of {len(suite)} answers were cut by max_tokens")
    assert num_cut <= len(suite) * 0.05


@pytest.mark.exhaustive
def test_an_answer_that_max_tokens_cuts_is_the_beginning_of_one_that_validates(served):
    """The same seed draws the same tokens, however many may follow."""

    def one(numbered: tuple[int, dict[str, Any]]) -> str:
        number, schema = numbered
        body = {"response_format": of_schema(schema), "seed": number}
        (whole,) = complete(served.url, **body)["choices"]
        assert check(whole["text"], whole["finish_reason"], schema)
        body["max_tokens"] = 1 + number % 24
        if number % 2:
            text, reason = stream(served.url, **body)
        else:
            (cut,) = complete(served.url, **body)["choices"]
            text, reason = cut["text"], cut["finish_reason"]
        assert whole["text"].startswith(text.rstrip("\ufffd")), "but for a part of a character"
        return reason

    with concurrent.futures.ThreadPoolExecutor(16) as threads:
        assert list(threads.map(one, enumerate(schemas(120, seed=2)))).count("length") > 60
    for schema in UNSUPPORTED:
        body = {"prompt": "Once", "response_format": of_schema({"type": "array", "items": schema})}
        answer = httpx.post(f"{served.url}/v1/completions", json=body)
        error = answer.json()["error"]
        assert (answer.status_code, error["type"], error["param"]) == (400, "invalid_request_error", "response_format")
        assert error["message"].startswith("response_format: the schema cannot be compiled: #/items: ")


@pytest.mark.long
def test_hostile_schemas_are_refused_while_others_are_answered(served):
    """A stream goes on, and a new schema that comes behind the hostile ones is compiled."""
    events, is_over = list[str](), threading.Event()

    def write_on() -> None:
        body = {"prompt": "Once", "max_tokens": MAX_TOKENS, "ignore_eos": True, "stream": True}
        while not is_over.is_set():
            with httpx.stream("POST", f"{served.url}/v1/completions", json=body, timeout=120) as answer:
                answer.raise_for_status()
                events.extend(line for line in answer.iter_lines() if line.startswith("data: {"))

    def ask(schema: dict[str, Any]) -> httpx.Response:
        body = {"prompt": "Once", "response_format": of_schema(schema), "max_tokens": MAX_TOKENS}
        return httpx.post(f"{served.url}/v1/completions", json=body, timeout=120)

    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        writing = threads.submit(write_on)
        try:
            hostile = [threads.submit(ask, schema) for schema in HOSTILE.values()]
            sound = threads.submit(ask, {"const": "new"})
            for answer in (each.result() for each in hostile):
                assert answer.status_code == 400, answer.text
                assert answer.json()["error"]["param"] == "response_format"
            begun = len(events)
            assert sound.result().json()["choices"][0]["text"] == '"new"'
            assert "processor time" in ask(HOSTILE["slow"]).json()["error"]["message"]
            assert len(events) > begun
        finally:
            is_over.set()
        writing.result()


def test_every_form_of_structured_output_constrains_greedy_and_drawn_tokens_and_their_logprobs(served):
    forms = {
        "regex": ("[a-f]{3}-[0-9]{2}", "[a-f]{3}-[0-9]{2}"),
        "choice": (["yes", "no", "perhaps"], "yes|no|perhaps"),
        "grammar": ('start: "<" /[a-z]/ ~ 4 ">"', "<[a-z]{4}>"),
        "json": ({"enum": [12, 345]}, "12|345"),
    }
    for name, (value, pattern) in forms.items():
        for sampling in ({"temperature": 0}, {"temperature": 1}, {"temperature": 1, "top_p": 0.3, "top_k": 5}):
            answer = complete(
                served.url, structured_outputs={name: value}, logprobs=5, n=2, **sampling, repetition_penalty=1.3,
                logit_bias={"5": 50}, presence_penalty=1,
            )  # fmt: skip
            for choice in answer["choices"]:
                assert re.fullmatch(pattern, choice["text"]), (name, choice)
                assert choice["finish_reason"] == "stop"
                likely = choice["logprobs"]["top_logprobs"]
                assert all(-1000 < value <= 0 for top in likely for value in top.values())
    (choice,) = complete(served.url, structured_outputs={"json_object": True}, max_tokens=60)["choices"]
    assert choice["text"].startswith("{")


def test_ends_of_sequence_stop_strings_and_limits(served):
    """ignore_eos does not prolong a complete grammar; min_tokens bans the end, and a stop string ends earlier."""

    def end(regex: str, **body: Any) -> tuple[str, str]:
        (choice,) = complete(served.url, structured_outputs={"regex": regex}, **body)["choices"]
        return choice["text"], choice["finish_reason"]

    assert end("abc", ignore_eos=True) == ("abc", "stop")
    assert end("[ab]{9}", max_tokens=4)[1] == "length"
    text, reason = end("[cd]*", min_tokens=7, max_tokens=9)
    assert re.fullmatch("[cd]{7,9}", text)
    assert reason in ("stop", "length")
    assert end("a{5}xb{5}", stop="x") == ("aaaaa", "stop")


INVALID = {
    "no schema": (
        {"response_format": {"type": "json_schema"}},
        "response_format: json_schema with a schema is",
    ),
    "type": ({"response_format": {"type": "xml"}}, "response_format.type: Input should be 'text', 'json_object' or"),
    "schema of another type": (
        {"response_format": {"type": "text", "json_schema": {"name": "x"}}},
        "response_format: json_schema is only allowed with type: json_schema",
    ),
    "unknown in a format": (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {}, "y": 1}}},
        "response_format.json_schema.y: this field is unknown or not supported",
    ),
    "structural tag": (
        {"structured_outputs": {"structural_tag": "x"}},
        "structured_outputs: structural_tag: is not supported: send json, regex, choice or grammar",
    ),
    "none": (
        {"structured_outputs": {}},
        "structured_outputs: exactly one of json, regex, choice, grammar",
    ),
    "two": ({"structured_outputs": {"regex": "a", "json_object": True}}, "structured_outputs: exactly one of json"),
    "both fields": (
        {"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}},
        "structured_outputs: is not allowed together with response_format",
    ),
    "older name": ({"guided_json": {}}, 'guided_json: send structured_outputs: {"json": …}'),
    "surrogate": ({"structured_outputs": {"regex": "\ud800"}}, "structured_outputs: regex has a lone surrogate at"),
    "long": ({"structured_outputs": {"regex": "ä" * 70_000}}, "structured_outputs: 140000 bytes, at most 131072 are"),
    "long schema": ({"structured_outputs": {"json": {"a": "x" * 140_000}}}, "structured_outputs: 140009 bytes of JSON"),
    "regex": (
        {"structured_outputs": {"regex": "(a"}},
        "structured_outputs: the regular expression cannot be",
    ),
    "place in a schema": (
        {"response_format": of_schema({"type": "object", "properties": {"a": {"type": "strin"}}})},
        "response_format: the schema cannot be compiled: #/properties/a: Invalid type: strin",
    ),
}


@pytest.mark.parametrize("name", INVALID)
def test_invalid_requests_are_refused_with_the_field(served, name):
    body, message = INVALID[name]
    answer = httpx.post(
        f"{served.url}/v1/completions",
        content=json.dumps({"prompt": "Once", **body}),
        headers={"Content-Type": "application/json"},
    )
    error = answer.json()["error"]
    assert answer.status_code == 400, error
    assert error["message"].startswith(message)
    assert (error["type"], error["param"]) == ("invalid_request_error", message.partition(":")[0].partition(".")[0])


@pytest.mark.long
def test_tokens_do_not_depend_on_the_rest_of_the_batch(served):
    bodies = [
        {"structured_outputs": {"json": PERSON}, "seed": number, "return_token_ids": True, "n": 1 + number % 2}
        for number in range(6)
    ]
    bodies += [{"prompt": "Twice", "seed": number, "max_tokens": 40, "return_token_ids": True} for number in range(6)]

    def tokens(body: dict[str, Any]) -> list[list[int]]:
        return [choice["token_ids"] for choice in complete(served.url, **body)["choices"]]

    alone = list(map(tokens, bodies))
    with concurrent.futures.ThreadPoolExecutor(len(bodies)) as threads:
        assert list(threads.map(tokens, bodies)) == alone


@pytest.mark.long
@pytest.mark.parametrize(
    "options",
    [("-pp", "2", "--api-processes", "2"), pytest.param(("-tp", "2"), marks=pytest.mark.exhaustive)],
    ids=" ".join,
)
def test_partitions_ranks_and_api_processes_change_no_token(served, model, options):
    bodies = [{"structured_outputs": {"json": PERSON}, "seed": number, "return_token_ids": True} for number in range(4)]
    expected = [complete(served.url, **body)["choices"] for body in bodies]
    with serve(model, *options, "--served-model-name", NAME, "--dtype", "float32") as other:
        assert [complete(other.url, **body)["choices"] for body in bodies] == expected
        refused = httpx.post(f"{other.url}/v1/completions", json={"prompt": "x", "structured_outputs": {"regex": "(a"}})
        assert refused.status_code == 400
        assert refused.json()["error"]["param"] == "structured_outputs"


@pytest.mark.long
def test_tokens_are_the_same_after_a_killed_worker_and_a_killed_master(checkpoint, tmp_path):
    """A worker's requests are computed again; a restarted master takes their grammar from the journal."""
    long_context = with_long_context(checkpoint(NAME), tmp_path)
    slow = with_tokenizer(long_context, tmp_path / "model")
    grammars = {"regex": "[a-z]{1000}"}, {"grammar": 'start: (A "-")+\nA: /[a-z]{2}/'}
    bodies = [
        {"prompt": "Once", "max_tokens": 1000, "temperature": 1, "stream": True, "seed": 3, "structured_outputs": one}
        for one in grammars
    ]

    async def play(served: Served, faults: Sequence[Callable[[], int]]) -> list[Transcript]:
        transcripts = [Transcript() for _ in bodies]
        async with httpx.AsyncClient(base_url=served.url, timeout=60) as client, asyncio.TaskGroup() as group:
            for body, transcript in zip(bodies, transcripts, strict=True):
                group.create_task(resume(client, "/v1/completions", body, transcript))
            for number, victim in enumerate(faults, 1):
                while any(len(entry.events) < 100 * number and not entry.complete for entry in transcripts):
                    await asyncio.sleep(0.01)
                os.kill(victim(), signal.SIGKILL)
        return transcripts

    with serve(slow, "--journal", str(tmp_path / "journal"), "--kv-slots", "16384") as server:
        undisturbed = asyncio.run(play(server, []))
        faults = [lambda: worker_pid(server, 0, "rank"), lambda: server.master]
        disturbed = asyncio.run(play(server, faults))
    assert [entry.events for entry in disturbed] == [entry.events for entry in undisturbed]
    assert disturbed[0].num_losses, "the other answer may have ended before the master was killed"
    text = "".join(json.loads(event)["choices"][0]["text"] for event in disturbed[0].events[:-1])
    assert re.fullmatch("[a-z]{1000}", text)
