"""The Responses API of a real server, through the official client and by hand."""

from __future__ import annotations

import json
from typing import Any

import httpx
import openai
import pydantic
import pytest
from support.every_byte import every_byte_model
from support.served import eventually, serve, value

pytestmark = pytest.mark.long

NAME = "every-byte"
TEMPLATE = """{% if tools %}{{ tools | tojson }} <tool_call>{% endif %}{% for message in messages %}\
{{ message.role }}: {{ message.content }}{% if message.tool_calls %}{{ message.tool_calls | tojson }}{% endif %}
{% endfor %}assistant:"""
ADD: dict[str, Any] = {"type": "function", "name": "add", "parameters": {"type": "object"}, "strict": False}


class Person(pydantic.BaseModel):
    """What `parse` returns."""

    age: int
    tags: list[bool]


@pytest.fixture(scope="module")
def served(run_folder, tmp_path_factory):
    template = tmp_path_factory.mktemp("responses") / "template.jinja"
    template.write_text(TEMPLATE)
    options = ("--served-model-name", NAME, "--dtype", "float32", "--chat-template", str(template))
    with serve(every_byte_model(run_folder), *options) as server:
        yield server


@pytest.fixture(scope="module")
def client(served):
    return openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0, timeout=60)


def ask(client, **options: Any) -> Any:
    extensions = {"ignore_eos": True, "seed": 7, **options.pop("extra_body", {})}
    return client.responses.create(
        **{"model": NAME, "input": "Hi", "max_output_tokens": 12, "temperature": 0, **options}, extra_body=extensions
    )


def test_a_response_is_the_chat_completion_of_its_items(client):
    chat = client.chat.completions.create(
        model=NAME, messages=[{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}],
        max_tokens=12, temperature=0, extra_body={"ignore_eos": True},
    )  # fmt: skip
    response = ask(client, instructions="Be brief.", metadata={"a": "b"})
    assert response.output_text == chat.choices[0].message.content
    assert (response.status, response.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert (response.instructions, response.metadata, response.max_output_tokens) == ("Be brief.", {"a": "b"}, 12)
    usage = response.usage
    assert (usage.input_tokens, usage.output_tokens) == (chat.usage.prompt_tokens, 12)
    assert usage.total_tokens == usage.input_tokens + 12
    again = ask(client, input=[{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}])
    assert again.output_text == response.output_text
    assert again.usage.input_tokens_details.cached_tokens > 0


def test_a_stream_has_the_same_answer(client):
    whole = ask(client)
    events = list(ask(client, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == whole.output_text
    last = events[-1]
    assert (last.type, last.response.output_text) == ("response.incomplete", whole.output_text)
    assert last.response.usage.output_tokens == 12


def test_an_answer_is_parsed(client):
    options = {"model": NAME, "input": "Who?", "max_output_tokens": 400, "extra_body": {"seed": 3}}
    response = client.responses.parse(**options, text_format=Person)
    if response.status == "completed":
        assert isinstance(response.output_parsed, Person)
    with client.responses.stream(**options, text_format=Person) as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
    assert text == response.output_text
    assert text.lstrip().startswith("{")
    any_object = ask(client, text={"format": {"type": "json_object"}}, max_output_tokens=40)
    assert any_object.output_text.lstrip().startswith("{")


def test_results_of_calls_are_in_the_prompt(client):
    first = {"role": "user", "content": "1 + 1?"}
    call = {"type": "function_call", "call_id": "call_1", "name": "add", "arguments": '{"x": 1}'}
    result = {"type": "function_call_output", "call_id": "call_1", "output": "2"}
    short = ask(client, input=[first, call, result], tools=[ADD])
    longer = ask(client, input=[first, call, {**result, "output": "2222"}], tools=[ADD])
    assert longer.usage.input_tokens == short.usage.input_tokens + 3
    without = ask(client, input=[first, call, result], tools=[ADD], tool_choice="none")
    assert without.usage.input_tokens < short.usage.input_tokens


def test_log_probabilities(client):
    response = ask(client, include=["message.output_text.logprobs"], top_logprobs=2)
    logprobs = response.output[0].content[0].logprobs
    assert "".join(entry.token for entry in logprobs) == response.output_text or "\ufffd" in response.output_text
    assert all(len(entry.top_logprobs) == 2 for entry in logprobs)
    events = list(ask(client, include=["message.output_text.logprobs"], top_logprobs=2, stream=True))
    streamed = [entry for event in events if event.type == "response.output_text.delta" for entry in event.logprobs]
    assert [(entry.token, entry.logprob) for entry in streamed] == [(entry.token, entry.logprob) for entry in logprobs]


def post(served, body: dict[str, Any]) -> httpx.Response:
    """Send a body that may have lone surrogates and NaN."""
    headers = {"Content-Type": "application/json"}
    return httpx.post(f"{served.url}/v1/responses", content=json.dumps(body), headers=headers, timeout=60)


def test_a_client_that_leaves_cancels_its_response(served):
    body = {"input": "Hi", "stream": True, "ignore_eos": True}
    with httpx.stream("POST", f"{served.url}/v1/responses", json=body, timeout=60) as stream:
        next(stream.iter_lines())

    def running() -> float:
        return value(httpx.get(f"{served.url}/metrics").text, "num_requests_running")

    assert eventually(lambda: running() == 0)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "input"),
        ({"input": {"a": 1}}, "input"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, "input"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input"),
        ({"input": "\ud800"}, "input"),
        ({"input": [{"type": "function_call_output", "call_id": "1", "output": ""}]}, "input"),
        ({"input": "a", "instructions": 5}, "instructions"),
        ({"input": "a", "tools": [{"type": "web_search"}]}, "tools"),
        ({"input": "a", "tool_choice": {"type": "file_search"}}, "tool_choice"),
        ({"input": "a", "text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "x"}}}}, "text"),
        ({"input": "a", "truncation": "last"}, "truncation"),
        ({"input": "a", "conversation": "conv_1"}, "conversation"),
        ({"input": "a", "max_output_tokens": 10**9}, "max_output_tokens"),
        ({"input": "a" * 1000, "extra": 1}, "extra"),
        ({"input": [{"role": "user"}] * 100_000}, "input"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_what_is_refused_is_named(served, body, field, stream):
    answer = post(served, {**body, "stream": stream})
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert (error["param"], error["type"]) == (field, "invalid_request_error")
    assert len(answer.content) < 2000


@pytest.mark.parametrize(
    "fields",
    [
        {"metadata": {"a": "\ud800"}},
        {"user": "\ud800"},
        {"safety_identifier": "\ud800"},
        {"tools": [{**ADD, "description": "\ud800"}], "tool_choice": "none"},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_a_lone_surrogate_that_is_repeated(served, fields):
    for stream in (False, True):
        answer = post(served, {"input": "a", "max_output_tokens": 2, "stream": stream, **fields})
        assert answer.status_code == 200, answer.text
        assert "\\ud800" in answer.text
        assert '"usage":{' in answer.text, "the response is complete"


def test_numbers_that_are_no_json_are_refused(served):
    answer = post(served, {"input": "a", "tools": [{**ADD, "parameters": {"default": float("nan")}}]})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "tools")


def test_a_conversation_is_continued(client):
    first = ask(client, instructions="Be brief.")
    second = ask(client, input="Go on.", previous_response_id=first.id)
    items = [{"role": "user", "content": "Hi"}, *first.output, {"role": "user", "content": "Go on."}]
    same = ask(client, input=items, store=False)
    assert second.output_text == same.output_text
    assert second.usage.input_tokens == same.usage.input_tokens
    assert client.responses.retrieve(second.id).output_text == second.output_text
    assert [item.content[0].text for item in client.responses.input_items.list(second.id)] == ["Go on."]
    client.responses.delete(first.id)
    with pytest.raises(openai.BadRequestError, match="is not stored"):
        ask(client, previous_response_id=second.id)


def test_a_recorded_response_is_read_as_a_chat_completion(run_folder, tmp_path):
    options = ("--dtype", "float32", "--journal", str(tmp_path / "journal"))
    with serve(every_byte_model(run_folder), "--served-model-name", NAME, *options) as server:
        body = {"input": "Hi", "max_output_tokens": 5, "temperature": 0, "ignore_eos": True}
        response = httpx.post(f"{server.url}/v1/responses", json=body, timeout=60).json()
        begun = httpx.post(f"{server.url}/v1/responses", json={**body, "background": True}, timeout=60).json()

        def recorded(response_id: str) -> Any:
            return httpx.get(f"{server.url}/v1/requests/{response_id}").json()

        assert eventually(lambda: recorded(begun["id"])["status"] == "completed")
        for response_id in (response["id"], begun["id"]):
            assert recorded(response_id)["status"] == "completed"
            (choice,) = recorded(response_id)["response"]["choices"]
            assert choice["message"]["content"] == response["output"][0]["content"][0]["text"]


def test_api_processes_share_their_stored_responses(run_folder):
    options = ("--dtype", "float32", "--api-processes", "2", "--api-key", "one", "--api-key", "two")
    with serve(every_byte_model(run_folder), "--served-model-name", NAME, *options) as server:
        url = f"{server.url}/v1/responses"
        one, two = ({"Authorization": f"Bearer {key}"} for key in ("one", "two"))
        body = {"input": "Hi", "max_output_tokens": 2, "temperature": 0}
        first = httpx.post(url, json=body, headers=one, timeout=60).json()
        before = {"previous_response_id": first["id"]}
        for _ in range(12):  # each on a connection of its own, which the kernel gives to one of the processes
            assert httpx.get(f"{url}/{first['id']}", headers=one).json() == first
            assert httpx.get(f"{url}/{first['id']}", headers=two).status_code == 404
            answer = httpx.post(url, json={**body, **before}, headers=one, timeout=60)
            assert answer.status_code == 200, answer.text
            before = {"previous_response_id": answer.json()["id"]}
        assert httpx.delete(f"{url}/{first['id']}", headers=two).status_code == 404
        assert httpx.delete(f"{url}/{first['id']}", headers=one).json()["deleted"] is True
        assert httpx.get(f"{url}/{first['id']}", headers=one).status_code == 404
        assert httpx.post(url, json={**body, **before}, headers=one, timeout=60).status_code == 400


def test_the_description_has_the_route(served):
    description = httpx.get(f"{served.url}/openapi.json").json()
    paths = description["paths"]
    assert "post" in paths["/v1/responses"]
    assert {"get", "delete"} <= set(paths["/v1/responses/{response_id}"])
    assert "get" in paths["/v1/responses/{response_id}/input_items"]
    assert "post" in paths["/v1/responses/{response_id}/cancel"]
    properties = description["components"]["schemas"]["ResponseRequest"]["properties"]
    assert properties["model"]["anyOf"] == [{"type": "string", "enum": [NAME]}, {"type": "null"}]
    assert "at most 704 tokens" in properties["max_output_tokens"]["description"]
