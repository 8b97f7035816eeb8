"""/v1/messages over an engine with prepared answers: errors in Anthropic's shape, keys, pings, reasoning, context."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from orca_contract.state import EngineState
from orca_master.endpoint import event_stream
from orca_master.endpoint.api_keys import digest
from orca_master.endpoint.application import create_app
from orca_master.endpoint.messages_errors import converted
from orca_master.engine.engine_client import EngineStatus
from orca_master.engine.messages import Output, Submission
from orca_master.errors import EngineError, QueueFullError, RequestError, RequestTimeoutError
from orca_master.scheduling.request import FinishReason
from orca_master.scheduling.thinking import ThinkingBudget
from support.scripted_engine import END, MODEL, Scripted, ScriptedEngine, make_model

TEMPLATE = "{# <tool_call> #}{{ messages | tojson }}{{ enable_thinking }}"
ASK: dict[str, Any] = {"model": MODEL, "max_tokens": 50, "messages": [{"role": "user", "content": "Hi"}]}
PATH = "/v1/messages"
Scene = Callable[[httpx.AsyncClient], Awaitable[None]]


@pytest.fixture
def model(tmp_path) -> Path:
    return make_model(tmp_path, TEMPLATE)


def play(scripted: Scripted, scene: Scene) -> None:
    async def run() -> None:
        transport = httpx.ASGITransport(create_app(scripted.endpoint), raise_app_exceptions=False)
        async with scripted, httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            await scene(client)

    asyncio.run(asyncio.wait_for(run(), 60))


def events_of(answer: httpx.Response) -> list[dict[str, Any]]:
    """Return the data of all events, whose names must be those of the data."""
    found = re.findall(r"event: (\w+)\ndata: (.*)\n\n", answer.text)
    assert "".join(f"event: {name}\ndata: {data}\n\n" for name, data in found) == answer.text
    events = [json.loads(data) for _, data in found]
    assert [name for name, _ in found] == [event["type"] for event in events]
    return events


def error_of(answer: httpx.Response) -> tuple[int, str, str]:
    body = answer.json()
    assert set(body) == {"type", "error"}
    assert body["type"] == "error"
    assert answer.headers["Content-Length"] == str(len(answer.content))
    return answer.status_code, body["error"]["type"], body["error"]["message"]


def refusing(error: Exception) -> type[ScriptedEngine]:
    """Return an engine that refuses every request with an error."""

    class Refusing(ScriptedEngine):
        def submit(self, submission: Submission, receive: Callable[[Output], object]) -> Awaitable[None]:
            refusal: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            refusal.set_exception(error)
            return refusal

    return Refusing


class Late(ScriptedEngine):
    """Answers after 0.2 s, and ends the answer with `failure` if there is one."""

    failure: Output | None = None

    def submit(self, submission: Submission, receive: Callable[[Output], object]) -> Awaitable[None]:
        def answer() -> None:
            for place, token in enumerate(self.tokens):
                is_last = place == len(self.tokens) - 1 and self.failure is None
                receive(Output(submission.request_id, token, FinishReason.STOP if is_last else None))
            if self.failure is not None:
                receive(self.failure)

        loop = asyncio.get_running_loop()
        loop.call_later(0.2, answer)
        accepted: asyncio.Future[None] = loop.create_future()
        accepted.set_result(None)
        return accepted


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (QueueFullError("full"), (429, "rate_limit_error", "full")),
        (EngineError("broken"), (500, "api_error", "broken")),
        (RequestTimeoutError("late"), (408, "timeout_error", "late")),
        (RuntimeError("secret"), (500, "api_error", "internal error: RuntimeError")),
    ],
    ids=lambda value: type(value).__name__,
)
def test_refusals_of_the_engine(model, error, expected):
    scripted = Scripted(model, END, engine=refusing(error))

    async def scene(client: httpx.AsyncClient) -> None:
        for stream in (False, True):
            answer = await client.post(PATH, json={**ASK, "stream": stream})
            assert error_of(answer) == expected
            assert ("Retry-After" in answer.headers) == (expected[0] == 429)

    play(scripted, scene)


def test_errors_before_the_engine(model):
    scripted = Scripted(model, END)

    async def scene(client: httpx.AsyncClient) -> None:
        assert error_of(await client.post(PATH, json={**ASK, "max_tokens": "x"}))[:2] == (400, "invalid_request_error")
        assert error_of(await client.post(PATH, content=b"{}"))[:2] == (400, "invalid_request_error")
        assert error_of(await client.post(PATH, json={**ASK, "model": "other"}))[:2] == (404, "not_found_error")
        assert error_of(await client.get(PATH))[:2] == (405, "invalid_request_error")
        assert error_of(await client.post(f"{PATH}/batches", json={}))[:2] == (404, "not_found_error")
        assert error_of(await client.post(f"{PATH}/count_tokens", json=ASK))[2].startswith("max_tokens: ")
        late = await client.post(PATH, json=ASK, headers={"X-Request-Deadline": "no"})
        assert error_of(late)[2].startswith("X-Request-Deadline: ")
        threaded = (await client.post(PATH, json={**ASK, "thread": {"type": "create"}})).json()
        assert threaded["error"]["details"] == {"error_code": "thread_unsupported_request"}
        other = await client.post("/v1/messagesx", json=ASK)
        assert set(other.json()) == {"error"}, "OpenAI's shape"
        assert other.json()["error"]["code"] is None

    play(scripted, scene)


def test_an_engine_that_does_not_serve_is_overloaded(model):
    class Loading(ScriptedEngine):
        @property
        def status(self) -> EngineStatus:
            return replace(super().status, state=EngineState.LOADING)

    scripted = Scripted(model, END, engine=Loading)

    async def scene(client: httpx.AsyncClient) -> None:
        for path, body in ((PATH, ASK), (f"{PATH}/count_tokens", {**ASK, "max_tokens": None})):
            answer = await client.post(path, json=body)
            assert error_of(answer)[:2] == (503, "overloaded_error")
            assert int(answer.headers["Retry-After"]) >= 1

    play(scripted, scene)


def test_an_engine_whose_wait_is_too_long_refuses_before_the_body(model):
    class Full(ScriptedEngine):
        @property
        def status(self) -> EngineStatus:
            return replace(super().status, expected_wait=9.0, max_expected_wait=1.0)

    scripted = Scripted(model, END, engine=Full)

    async def scene(client: httpx.AsyncClient) -> None:
        assert error_of(await client.post(PATH, content=b"no JSON"))[:2] == (429, "rate_limit_error")
        count = await client.post(f"{PATH}/count_tokens", json={**ASK, "max_tokens": None})
        assert count.status_code == 200, "counting waits for no engine"

    play(scripted, scene)


@pytest.mark.parametrize(
    ("headers", "accepted"),
    [
        ({"x-api-key": "secret"}, True),
        ({"Authorization": "Bearer secret"}, True),
        ({"x-api-key": "old", "Authorization": "Bearer secret"}, True),
        ({"x-api-key": "secret", "Authorization": "Bearer old"}, True),
        ({"x-api-key": "old"}, False),
        ({"x-api-key": ""}, False),
        ({"Authorization": "secret"}, False),
        ({}, False),
    ],
)
def test_keys(model, headers, accepted):
    scripted = Scripted(model, END, api_keys=frozenset({digest("secret")}))

    async def scene(client: httpx.AsyncClient) -> None:
        answer = await client.post(PATH, json=ASK, headers=headers)
        if accepted:
            assert answer.status_code == 200
        else:
            needed = "an API key of this server is needed: x-api-key: KEY, or Authorization: Bearer KEY"
            assert error_of(answer) == (401, "authentication_error", needed)
        chat = await client.post("/v1/chat/completions", json=ASK, headers=headers)
        assert (chat.status_code == 200) == (headers.get("Authorization") == "Bearer secret")

    play(scripted, scene)


def test_requests_of_different_keys_share_no_prefixes_whatever_header_names_the_key(model):
    scripted = Scripted(model, END, api_keys=frozenset(map(digest, ("one", "two"))))

    async def scene(client: httpx.AsyncClient) -> None:
        for headers in ({"x-api-key": "one"}, {"Authorization": "Bearer one"}, {"x-api-key": "two"}):
            assert (await client.post(PATH, json=ASK, headers=headers)).status_code == 200
        one, same, two = (submission.cache_salt for submission in scripted.engine.submissions)
        assert one == same != two

    play(scripted, scene)


def test_a_silent_stream_has_pings(model, monkeypatch):
    monkeypatch.setattr(event_stream, "COMMENT_SECONDS", 0.01)
    scripted = Scripted(model, f"Yes.{END}", engine=Late)

    async def scene(client: httpx.AsyncClient) -> None:
        events = events_of(await client.post(PATH, json={**ASK, "stream": True}))
        assert events[0] == {"type": "ping"}
        kinds = [event["type"] for event in events if event["type"] != "ping"]
        assert (kinds[0], kinds[-1]) == ("message_start", "message_stop")

    play(scripted, scene)


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        (FinishReason.FAULT, "api_error"),
        (None, "overloaded_error"),
        (FinishReason.CONSTRAINT, "invalid_request_error"),
    ],
)
def test_a_stream_that_fails_ends_with_an_error_event(model, reason, kind):
    class Failing(Late):
        failure = Output("", None, reason, "a worker was lost")

    scripted = Scripted(model, "Yes", engine=Failing)

    async def scene(client: httpx.AsyncClient) -> None:
        *before, last = events_of(await client.post(PATH, json={**ASK, "stream": True}))
        assert last == {"type": "error", "error": {"type": kind, "message": "a worker was lost"}}
        assert [event["delta"]["text"] for event in before if event["type"] == "content_block_delta"] == ["Y", "e", "s"]

    play(scripted, scene)


def test_while_a_call_is_generated_pings_are_due(model, monkeypatch):
    """An empty write would count as a sign of life without being one."""
    monkeypatch.setattr(event_stream, "COMMENT_SECONDS", 0.02)
    call = '<tool_call>{"name": "add", "arguments": {"x": 1}}</tool_call>'

    class Halting(ScriptedEngine):
        """Answers, with a pause of 0.2 s in the middle."""

        def submit(self, submission: Submission, receive: Callable[[Output], object]) -> Awaitable[None]:
            loop = asyncio.get_running_loop()
            for place, token in enumerate(self.tokens):
                is_last = place == len(self.tokens) - 1
                output = Output(submission.request_id, token, FinishReason.STOP if is_last else None)
                loop.call_later(0.0 if place < len(self.tokens) // 2 else 0.2, receive, output)
            accepted: asyncio.Future[None] = loop.create_future()
            accepted.set_result(None)
            return accepted

    scripted = Scripted(model, f"{call}{END}", engine=Halting)

    async def scene(client: httpx.AsyncClient) -> None:
        tools = [{"name": "add", "input_schema": {}}]
        events = events_of(await client.post(PATH, json={**ASK, "max_tokens": 99, "stream": True, "tools": tools}))
        kinds = [event["type"] for event in events]
        assert "ping" in kinds[kinds.index("message_start") : kinds.index("content_block_start")]
        deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
        assert deltas == [{"type": "input_json_delta", "partial_json": '{"x": 1}'}]

    play(scripted, scene)


@pytest.mark.parametrize(
    ("thinking", "kinds", "variable"),
    [
        (None, ["text"], ""),
        ({"type": "disabled"}, ["text"], "False"),
        ({"type": "enabled", "budget_tokens": 1024}, ["thinking", "text"], "True"),
        ({"type": "enabled", "budget_tokens": 1024, "display": "omitted"}, ["text"], "True"),
        ({"type": "adaptive"}, ["thinking", "text"], ""),
    ],
)
def test_reasoning_is_a_block_if_the_client_asks_for_it(model, thinking, kinds, variable):
    scripted = Scripted(model, f"<think>Hm.</think>Yes.{END}", reasoning_parser="qwen3")

    async def scene(client: httpx.AsyncClient) -> None:
        answer = (await client.post(PATH, json={**ASK, "max_tokens": 2000, "thinking": thinking})).json()
        assert [block["type"] for block in answer["content"]] == kinds
        assert answer["content"][-1]["text"] == "Yes."
        assert answer["usage"]["output_tokens"] == len(scripted.engine.tokens), "reasoning counts in any case"
        assert scripted.prompt.endswith(f"]{variable}")

    play(scripted, scene)


def test_a_budget_of_reasoning_is_that_of_a_chat(model):
    scripted = Scripted(model, f"Hm.</think>Yes.{END}", reasoning_parser="deepseek_r1")
    over = tuple(scripted.codec.encode("</think>"))

    async def scene(client: httpx.AsyncClient) -> None:
        for thinking, most in (
            ({"type": "enabled", "budget_tokens": 1024}, 1024),
            ({"type": "enabled", "budget_tokens": 1999}, 1999),
            ({"type": "enabled"}, None),
            ({"type": "adaptive", "budget_tokens": 1024}, None),
            ({"type": "disabled", "budget_tokens": 1024}, None),
            (None, None),
        ):
            body = {**ASK, "max_tokens": 2000, "thinking": thinking}
            assert (await client.post(PATH, json=body)).status_code == 200
            expected = None if most is None else ThinkingBudget(most, "deepseek_r1", over)
            assert scripted.engine.submissions[-1].thinking_budget == expected
        enabled = {"type": "enabled", "budget_tokens": 10**6}
        tools = [{"name": "add", "input_schema": {"type": "object"}}]
        for max_tokens, fields in ((10**6 + 1, {}), (2000, {"tools": tools})):
            body = {**ASK, "max_tokens": max_tokens, "thinking": enabled, **fields}
            assert (await client.post(PATH, json=body)).status_code == 200
            assert scripted.engine.submissions[-1].thinking_budget is None, "no end is forced"

    play(scripted, scene)


def test_an_error_about_the_budget_names_the_field_of_this_api(model):
    class Refusing(ScriptedEngine):
        def submit(self, submission: Submission, receive: Callable[[Output], object]) -> Awaitable[None]:
            raise RequestError("thinking_token_budget: no tokenizer", "thinking_token_budget")

    scripted = Scripted(model, END, engine=Refusing, reasoning_parser="deepseek_r1")

    async def scene(client: httpx.AsyncClient) -> None:
        body = {**ASK, "max_tokens": 2000, "thinking": {"type": "enabled", "budget_tokens": 1024}}
        expected = (400, "invalid_request_error", "thinking.budget_tokens: no tokenizer")
        assert error_of(await client.post(PATH, json=body)) == expected
        unknown = error_of(await client.post(PATH, json={**ASK, "thinking_token_budget": 1}))[2]
        assert unknown == "thinking_token_budget: this field is unknown or not supported"

    play(scripted, scene)


def test_a_late_error_about_the_budget_names_the_field_of_this_api(model, monkeypatch):
    monkeypatch.setattr(event_stream, "COMMENT_SECONDS", 0.05)

    class Refusing(ScriptedEngine):
        async def submit(self, submission: Submission, receive: Callable[[Output], object]) -> None:
            await asyncio.sleep(0.3)
            raise RequestError("thinking_token_budget: no tokenizer", "thinking_token_budget")

    scripted = Scripted(model, END, engine=Refusing, reasoning_parser="deepseek_r1")

    async def scene(client: httpx.AsyncClient) -> None:
        thinking = {"type": "enabled", "budget_tokens": 1024}
        answer = await client.post(PATH, json={**ASK, "max_tokens": 2000, "thinking": thinking, "stream": True})
        last = events_of(answer)[-1]
        expected = {"type": "invalid_request_error", "message": "thinking.budget_tokens: no tokenizer"}
        assert (answer.status_code, last["type"], last["error"]) == (200, "error", expected)

    play(scripted, scene)


def test_without_a_parser_reasoning_cannot_be_asked_for(model):
    scripted = Scripted(model, END)

    async def scene(client: httpx.AsyncClient) -> None:
        for path in (PATH, f"{PATH}/count_tokens"):
            body = {**ASK, "thinking": {"type": "enabled"}, "max_tokens": 5 if path == PATH else None}
            status, _, message = error_of(await client.post(path, json=body))
            assert (status, message.partition(":")[0]) == (400, "thinking")
            body["thinking"] = {"type": "adaptive"}
            assert (await client.post(path, json=body)).status_code == 200

    play(scripted, scene)


def test_max_tokens_beyond_the_context_are_those_that_fit(model):
    scripted = Scripted(model, "Yes", FinishReason.LENGTH)
    longest = scripted.engine.status.longest

    async def scene(client: httpx.AsyncClient) -> None:
        for max_tokens, reason in ((10**6, "model_context_window_exceeded"), (3, "max_tokens")):
            answer = (await client.post(PATH, json={**ASK, "max_tokens": max_tokens})).json()
            assert answer["stop_reason"] == reason
            submission = scripted.engine.submissions[-1]
            assert submission.max_gen_tokens == min(max_tokens, longest - len(submission.prompt))
        long = {**ASK, "messages": [{"role": "user", "content": "x" * longest}]}
        assert error_of(await client.post(PATH, json=long))[2].startswith("the prompt is too long: the messages have ")

    play(scripted, scene)


@pytest.mark.parametrize(
    ("choice", "text"),
    [
        ({"type": "any"}, '[{"name": "add", "parameters": {"x": 1}}]'),
        ({"type": "tool", "name": "add"}, '{"x": 1}'),
    ],
    ids=["any", "tool"],
)
def test_forced_calls(model, choice, text):
    """The engine of the test gives what the grammar would have enforced."""
    scripted = Scripted(model, f"{text}{END}", tool_call_parser="none")

    async def scene(client: httpx.AsyncClient) -> None:
        tools = [{"name": name, "input_schema": {"type": "object"}} for name in ("add", "now")]
        answer = (await client.post(PATH, json={**ASK, "tools": tools, "tool_choice": choice})).json()
        (call,) = answer["content"]
        assert (call["name"], call["input"], answer["stop_reason"]) == ("add", {"x": 1}, "tool_use")
        assert scripted.engine.submissions[-1].grammar is not None

    play(scripted, scene)


def test_an_unsupported_schema_is_named_as_the_client_wrote_it(model):
    async def scene(client: httpx.AsyncClient) -> None:
        tools = [{"name": "add", "input_schema": {"type": "array"}, "strict": True}]
        answer = await client.post(PATH, json={**ASK, "tools": tools})
        assert error_of(answer)[2].startswith("tools.0.input_schema: ")

    play(Scripted(model, END), scene)


def test_an_answer_that_is_begun_is_continued(tmp_path):
    template = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
    scripted = Scripted(make_model(tmp_path, template), f"two{END}")

    async def scene(client: httpx.AsyncClient) -> None:
        messages = [*ASK["messages"], {"role": "assistant", "content": [{"type": "text", "text": "One,"}]}]
        answer = (await client.post(PATH, json={**ASK, "messages": messages})).json()
        assert answer["content"] == [{"type": "text", "text": "two"}]
        assert scripted.prompt == "user: Hi\nassistant: One,"

    play(scripted, scene)


def test_the_headers_and_the_query_of_clients_change_nothing(model):
    scripted = Scripted(model, f"Yes.{END}")

    async def scene(client: httpx.AsyncClient) -> None:
        headers = {"anthropic-version": "2023-06-01", "anthropic-beta": "a,b"}
        answer = await client.post(f"{PATH}?beta=true", json=ASK, headers=headers)
        assert answer.json()["content"] == [{"type": "text", "text": "Yes."}]
        assert answer.headers["X-Request-Id"]

    play(scripted, scene)


def test_the_schema_has_the_routes_and_the_errors(model):
    schema = create_app(Scripted(model, END).endpoint).openapi()
    for path, body in ((PATH, "MessagesRequest"), (f"{PATH}/count_tokens", "CountTokensRequest")):
        operation = schema["paths"][path]["post"]
        content = operation["requestBody"]["content"]["application/json"]
        assert content["schema"] == {"$ref": f"#/components/schemas/{body}"}
        assert schema["components"]["schemas"][body]["properties"]["model"]["enum"] == [MODEL]
        refused = operation["responses"]["400"]["content"]["application/json"]["schema"]
        assert refused == {"$ref": "#/components/schemas/MessagesErrorBody"}


@pytest.mark.parametrize("body", [b"plain", b'{"error": 1}', b"[]", b"\xff", b'{"error": {"message": 1, "type": "x"}}'])
def test_an_error_in_no_known_shape_is_the_message(body):
    error = json.loads(converted(400, body))["error"]
    assert error == {"type": "invalid_request_error", "message": body.decode("utf-8", "replace")}
