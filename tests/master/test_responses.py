"""/v1/responses through the official client, over an engine with prepared answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import openai
import pytest
from orca_master.endpoint import event_stream
from orca_master.engine.messages import Output, Submission
from orca_master.scheduling.request import FinishReason
from support.scripted_engine import END, MODEL, Scripted, make_model

TEMPLATE = "{% if tools %}{{ tools | tojson }} in <tool_call>{% endif %}{{ messages | tojson }}"
ANSWER = (
    '<think>Hm.</think>Yes. <tool_call>\n{"name": "add", "arguments": {"x": 1}}\n</tool_call>'
    '<tool_call>{"name": "now", "arguments": {}}</tool_call>'
)
ADD: dict[str, Any] = {
    "type": "function",
    "name": "add",
    "description": "Add one.",
    "parameters": {
        "type": "object",
        "properties": {"x": {"type": "integer"}},
        "required": ["x"],
        "additionalProperties": False,
    },
    "strict": True,
}
NOW: dict[str, Any] = {"type": "function", "name": "now", "parameters": {}, "strict": False}


def play(scripted: Scripted, scene: Callable[[Any], Awaitable[None]]) -> None:
    async def run() -> None:
        async with scripted as client:
            await scene(client.responses)

    asyncio.run(asyncio.wait_for(run(), 60))


def scripted(tmp_path, answer: str = f"{ANSWER}{END}", reason: FinishReason = FinishReason.STOP) -> Scripted:
    return Scripted(make_model(tmp_path, TEMPLATE), answer, reason, reasoning_parser="qwen3")


def test_the_tokens_of_an_input_are_those_of_its_response(tmp_path):
    async def scene(responses: Any) -> None:
        first = await responses.create(model=MODEL, input="1 + 1?", store=True)
        for fields in (
            {"input": "1 + 1?"},
            {"input": [{"role": "user", "content": "1 + 1?"}], "instructions": "Be brief.", "tools": [ADD, NOW]},
            {"input": "more", "previous_response_id": first.id},
        ):
            count = await responses.input_tokens.count(model=MODEL, **fields)
            response = await responses.create(model=MODEL, **fields)
            assert (count.object, count.input_tokens) == ("response.input_tokens", response.usage.input_tokens)
        for fields, field in (({"previous_response_id": "resp_1"}, "previous_response_id"), ({"input": []}, "input")):
            with pytest.raises(openai.BadRequestError) as refused:
                await responses.input_tokens.count(model=MODEL, **{"input": "a", **fields})
            assert refused.value.param == field
        with pytest.raises(openai.NotFoundError):
            await responses.input_tokens.count(model="other", input="a")

    play(scripted(tmp_path), scene)


def test_a_loop_of_calls(tmp_path):
    server = scripted(tmp_path)

    async def scene(responses: Any) -> None:
        response = await responses.create(model=MODEL, input="1 + 1?", tools=[ADD, NOW], instructions="Be brief.")
        assert (response.status, response.error, response.output_text) == ("completed", None, "Yes. ")
        assert [item.type for item in response.output] == ["reasoning", "message", "function_call", "function_call"]
        reasoning, _, add, now = response.output
        assert reasoning.content[0].text == "Hm."
        assert (add.name, add.arguments, now.name, now.arguments) == ("add", '{"x": 1}', "now", "{}")
        assert add.call_id != now.call_id
        assert json.loads(server.prompt.rpartition(" in <tool_call>")[2]) == [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "1 + 1?"},
        ]
        results = [
            {"type": "function_call_output", "call_id": call.call_id, "output": text}
            for call, text in ((add, "2"), (now, "noon"))
        ]
        await responses.create(
            model=MODEL, input=[{"role": "user", "content": "1 + 1?"}, *response.output, *results], tools=[ADD, NOW]
        )
        messages = json.loads(server.prompt.rpartition(" in <tool_call>")[2])
        assert [message["role"] for message in messages] == ["user", "assistant", "tool", "tool"]
        assert messages[1]["content"] == "Yes. "
        assert messages[1]["reasoning_content"] == "Hm."
        assert [call["function"]["name"] for call in messages[1]["tool_calls"]] == ["add", "now"]
        assert [message["content"] for message in messages[2:]] == ["2", "noon"]

    play(server, scene)


def test_a_stream_has_the_response_of_the_whole_answer(tmp_path):
    async def scene(responses: Any) -> None:
        options = {"model": MODEL, "input": "1 + 1?", "tools": [ADD, NOW]}
        whole = await responses.create(**options)
        stream = await responses.create(**options, stream=True)
        events = [event async for event in stream]
        assert [event.sequence_number for event in events] == list(range(len(events)))
        kinds = [event.type for event in events]
        assert kinds[:3] == ["response.created", "response.in_progress", "response.output_item.added"]
        assert kinds[-2:] == ["response.output_item.done", "response.completed"]
        final = events[-1].response
        assert without_ids(final) == without_ids(whole)
        assert [event.item for event in events if event.type == "response.output_item.done"] == final.output
        for place, item in enumerate(final.output):
            deltas = [event.delta for event in events if hasattr(event, "delta") and event.output_index == place]
            text = item.arguments if item.type == "function_call" else item.content[0].text
            assert "".join(deltas) == text

    play(scripted(tmp_path), scene)


def without_ids(response: Any) -> dict[str, Any]:
    data: dict[str, Any] = response.to_dict()
    for item in data["output"]:
        item.pop("id")
        item.pop("call_id", None)
    return {name: value for name, value in data.items() if name not in ("id", "created_at", "completed_at")}


def test_the_clients_own_stream_parses_arguments(tmp_path):
    async def scene(responses: Any) -> None:
        async with responses.stream(model=MODEL, input="1 + 1?", tools=[ADD, NOW]) as stream:
            snapshots = [event.snapshot async for event in stream if event.type == "response.output_text.delta"]
            response = await stream.get_final_response()
        assert snapshots[-1] == "Yes. "
        assert response.output[2].parsed_arguments == {"x": 1}

    play(scripted(tmp_path), scene)


def test_what_a_response_ends_with(tmp_path):
    async def cut(responses: Any) -> None:
        response = await responses.create(model=MODEL, input="a")
        assert (response.status, response.incomplete_details.reason) == ("incomplete", "max_output_tokens")
        events = [event async for event in await responses.create(model=MODEL, input="a", stream=True)]
        assert events[-1].type == "response.incomplete"
        assert events[-1].response.output[-1].status == "incomplete"

    play(scripted(tmp_path, "<think>Hm.</think>Y", FinishReason.LENGTH), cut)

    async def empty(responses: Any) -> None:
        response = await responses.create(model=MODEL, input="a")
        assert (response.status, response.output_text, len(response.output)) == ("completed", "", 1)

    play(scripted(tmp_path, END), empty)


def test_an_error_after_the_first_token_ends_the_stream(tmp_path):
    server = scripted(tmp_path, "ab")
    whole = server.engine.submit

    def submit(submission: Submission, receive: Callable[[Output], object]) -> Awaitable[None]:
        def fail_at_the_end(output: Output) -> None:
            if output.finish_reason is not None:
                output = Output(submission.request_id, None, FinishReason.ERROR, "the worker is lost")
            receive(output)

        return whole(submission, fail_at_the_end)

    server.engine.submit = submit  # type: ignore[method-assign]

    async def scene(responses: Any) -> None:
        events = [event async for event in await responses.create(model=MODEL, input="a", stream=True)]
        assert [event.sequence_number for event in events] == list(range(len(events)))
        assert events[-1].type == "response.failed"
        response = events[-1].response
        assert (response.status, response.error.code) == ("failed", "server_error")
        assert response.error.message == "the worker is lost"
        assert response.output_text == "a"
        with pytest.raises(openai.InternalServerError, match="the worker is lost"):
            await responses.create(model=MODEL, input="a")

    play(server, scene)


def test_a_stream_begins_without_a_token_when_it_has_to_wait(tmp_path, monkeypatch):
    monkeypatch.setattr(event_stream, "COMMENT_SECONDS", 0.01)
    server = scripted(tmp_path)
    begun = asyncio.Event()
    whole = server.engine.submit

    def submit(submission: Submission, receive: Callable[[Output], object]) -> Awaitable[None]:
        async def later() -> None:
            await begun.wait()
            await whole(submission, receive)

        return later()

    server.engine.submit = submit  # type: ignore[method-assign]

    async def scene(responses: Any) -> None:
        # ASGITransport collects a response before it returns it: the stream ends only if its beginning was sent.
        asyncio.get_running_loop().call_later(0.1, begun.set)
        events = [event async for event in await responses.create(model=MODEL, input="a", stream=True)]
        assert [event.type for event in events[:2]] == ["response.created", "response.in_progress"]
        assert events[-1].type == "response.completed"

    play(server, scene)


@pytest.mark.parametrize(
    ("options", "field", "words"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id", "send all items in input"),
        ({"conversation": "conv_1"}, "conversation", "set previous_response_id"),
        ({"input": "a" * 20_000}, "input", "leave no room"),
        ({"text": {"format": {"type": "json_schema", "name": "n", "schema": {"a": "x" * 2_000_000}}}}, "text", "bytes"),
        ({"model": "other"}, "model", "does not exist"),
    ],
)
def test_errors_name_the_field(tmp_path, options, field, words):
    async def scene(responses: Any) -> None:
        with pytest.raises((openai.BadRequestError, openai.NotFoundError)) as refused:
            await responses.create(**{"model": MODEL, "input": "a", **options})
        assert refused.value.param == field
        assert words in refused.value.message

    play(scripted(tmp_path), scene)


def test_events_have_their_names_and_no_done(tmp_path):
    async def scene(responses: Any) -> None:
        answer = await responses._client._client.post(
            "http://localhost/v1/responses", json={"input": "a", "stream": True}
        )
        assert answer.headers["content-type"].startswith("text/event-stream")
        for event in answer.text.split("\n\n")[:-1]:
            name, data = event.split("\n")
            assert name == f"event: {json.loads(data.removeprefix('data: '))['type']}"

    play(scripted(tmp_path, f"a{END}"), scene)
