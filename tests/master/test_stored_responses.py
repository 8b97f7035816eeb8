"""Responses that are stored: continued, read again and deleted by the key that made them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import openai
import pytest
from orca_master.endpoint.api_keys import digest
from orca_master.endpoint.response_store import StoreLimits
from orca_master.scheduling.request import FinishReason
from support.scripted_engine import END, MODEL, Scripted, make_model

TEMPLATE = "{% if tools %}{{ tools | tojson }} in <tool_call>{% endif %}{{ messages | tojson }}"
CALL = 'Yes.<tool_call>{"name": "add", "arguments": {"x": 1}}</tool_call>'
ADD: dict[str, Any] = {"type": "function", "name": "add", "parameters": {"type": "object"}, "strict": False}
UNKNOWN = f"resp_{0:032x}"


def play(server: Scripted, scene: Callable[[openai.AsyncOpenAI], Awaitable[None]]) -> None:
    async def run() -> None:
        async with server as client:
            await scene(client)

    asyncio.run(asyncio.wait_for(run(), 60))


def scripted(tmp_path, answer: str = CALL, **options: Any) -> Scripted:
    return Scripted(make_model(tmp_path, TEMPLATE), f"{answer}{END}", **options)


def messages(server: Scripted) -> Any:
    return json.loads(server.prompt.rpartition(" in <tool_call>")[2])


@pytest.mark.parametrize("stream", [False, True])
def test_a_conversation_is_continued_by_its_last_response(tmp_path, stream):
    server = scripted(tmp_path)

    async def create(client: openai.AsyncOpenAI, **options: Any) -> Any:
        answer: Any = await client.responses.create(model=MODEL, tools=[ADD], stream=stream, **options)
        return [event async for event in answer][-1].response if stream else answer

    async def scene(client: openai.AsyncOpenAI) -> None:
        first = await create(client, input="1 + 1?", instructions="Be brief.")
        assert first.store
        result = {"type": "function_call_output", "call_id": first.output[1].call_id, "output": "2"}
        second = await create(client, input=[result], previous_response_id=first.id, instructions="Be verbose.")
        assert second.previous_response_id == first.id
        assert [message["role"] for message in messages(server)] == ["system", "user", "assistant", "tool"]
        assert messages(server)[0]["content"] == "Be verbose.", "instructions are not carried over"
        assert messages(server)[2]["tool_calls"][0]["id"] == first.output[1].call_id
        await create(client, input="And 2 + 2?", previous_response_id=second.id)
        assert [message["role"] for message in messages(server)] == [
            "user", "assistant", "tool", "assistant", "user",
        ]  # fmt: skip

    play(server, scene)


def test_a_stored_response_is_read_again_and_deleted(tmp_path):
    async def scene(client: openai.AsyncOpenAI) -> None:
        items: Any = [{"role": "user", "content": text} for text in "abc"]
        response = await client.responses.create(model=MODEL, input=items, metadata={"a": "b"}, tools=[ADD])
        assert (await client.responses.retrieve(response.id)).to_dict() == response.to_dict()
        page = await client.responses.input_items.list(response.id, limit=2)
        assert [item.content[0].text for item in page.data] == ["c", "b"]  # type: ignore[union-attr]
        everything = [item.content[0].text async for item in client.responses.input_items.list(response.id, limit=2)]  # type: ignore[union-attr]
        assert everything == ["c", "b", "a"]
        ascending = await client.responses.input_items.list(response.id, order="asc", after=page.data[1].id)
        assert [item.content[0].text for item in ascending.data] == ["c"]  # type: ignore[union-attr]
        await client.responses.delete(response.id)
        for call in (
            client.responses.retrieve(response.id),
            client.responses.delete(response.id),
            client.responses.input_items.list(response.id),
        ):
            with pytest.raises(openai.NotFoundError, match="is not stored"):
                await call
        with pytest.raises(openai.BadRequestError) as refused:
            await client.responses.create(model=MODEL, input="a", previous_response_id=response.id)
        assert (refused.value.code, refused.value.param) == ("previous_response_not_found", "previous_response_id")

    play(scripted(tmp_path), scene)


def test_a_response_belongs_to_the_key_that_made_it(tmp_path):
    server = scripted(tmp_path, api_keys=frozenset({digest("one"), digest("two")}))

    async def scene(client: openai.AsyncOpenAI) -> None:
        one, two = client.with_options(api_key="one"), client.with_options(api_key="two")
        response = await one.responses.create(model=MODEL, input="a")
        assert (await one.responses.retrieve(response.id)).id == response.id
        for call in (
            two.responses.retrieve(response.id),
            two.responses.delete(response.id),
            two.responses.input_items.list(response.id),
        ):
            with pytest.raises(openai.NotFoundError):
                await call
        with pytest.raises(openai.BadRequestError, match="or another API key made it"):
            await two.responses.create(model=MODEL, input="a", previous_response_id=response.id)
        with pytest.raises(openai.AuthenticationError):
            await client.with_options(api_key="three").responses.retrieve(response.id)
        assert (await one.responses.retrieve(response.id)).id == response.id

    play(server, scene)


def test_what_is_not_stored(tmp_path):
    async def scene(client: openai.AsyncOpenAI) -> None:
        response = await client.responses.create(model=MODEL, input="a", store=False)
        assert response.to_dict()["store"] is False
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(response.id)

    play(scripted(tmp_path), scene)

    async def small(client: openai.AsyncOpenAI) -> None:
        response = await client.responses.create(model=MODEL, input="a")
        assert response.to_dict()["store"] is False, "the response says that it was too large"
        events = [event async for event in await client.responses.create(model=MODEL, input="a", stream=True)]
        assert events[-1].response.to_dict()["store"] is False  # type: ignore[union-attr]

    play(scripted(tmp_path, stored_responses=StoreLimits(num_bytes=1500)), small)


def test_a_server_that_stores_nothing(tmp_path):
    async def scene(client: openai.AsyncOpenAI) -> None:
        response = await client.responses.create(model=MODEL, input="a")
        assert response.to_dict()["store"] is False
        with pytest.raises(openai.BadRequestError, match="stores no responses") as refused:
            await client.responses.create(model=MODEL, input="a", store=True)
        assert refused.value.param == "store"
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(response.id)

    play(scripted(tmp_path, stored_responses=StoreLimits(count=0)), scene)


@pytest.mark.parametrize("response_id", ["x", "resp_1", UNKNOWN, f"{UNKNOWN}%0a", "..", "%ED%A0%80", "a" * 1000])
def test_unknown_ids(tmp_path, response_id):
    async def scene(client: openai.AsyncOpenAI) -> None:
        http = client._client
        url = f"http://localhost/v1/responses/{response_id}"
        for answer in (await http.get(url), await http.delete(url), await http.get(f"{url}/input_items")):
            assert answer.status_code in (404, 405), answer.text
            assert "error" in answer.json()
            assert len(answer.content) < 500
        with pytest.raises(openai.BadRequestError):
            await client.responses.create(model=MODEL, input="a", previous_response_id=response_id)

    play(scripted(tmp_path), scene)


@pytest.mark.parametrize(
    ("query", "param"), [("limit=0", "limit"), ("limit=101", "limit"), ("order=x", "order"), ("after=x", "after")]
)
def test_queries_that_are_refused(tmp_path, query, param):
    async def scene(client: openai.AsyncOpenAI) -> None:
        response = await client.responses.create(model=MODEL, input="a")
        url = f"http://localhost/v1/responses/{response.id}"
        answer = await client._client.get(f"{url}/input_items?{query}")
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
        answer = await client._client.get(f"{url}?stream=true")
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "stream")

    play(scripted(tmp_path), scene)


@pytest.mark.parametrize("arguments", ['{"x": 1', f'{{"x": {"[" * 128}{"]" * 128}}}'], ids=["cut", "deep"])
def test_a_call_without_an_object_is_part_of_the_conversation_if_it_has_a_result(tmp_path, arguments):
    answer = f'Yes. <tool_call>{{"name": "add", "arguments": {arguments}'
    server = Scripted(make_model(tmp_path, TEMPLATE), answer, FinishReason.LENGTH)

    async def scene(client: openai.AsyncOpenAI) -> None:
        response = await client.responses.create(model=MODEL, input="a", tools=[ADD])
        assert [item.type for item in response.output] == ["message", "function_call"]
        result = {"type": "function_call_output", "call_id": response.output[1].call_id, "output": "b"}
        await client.responses.create(model=MODEL, input="c", previous_response_id=response.id)
        assert [message["content"] for message in messages(server)] == ["a", "Yes. ", "c"]
        assert "tool_calls" not in messages(server)[1]
        await client.responses.create(model=MODEL, input=[result], previous_response_id=response.id)
        user, assistant, tool = messages(server)
        assert [(message["role"], message["content"]) for message in (user, assistant, tool)] == [
            ("user", "a"),
            ("assistant", "Yes. "),
            ("tool", "b"),
        ]
        assert assistant["tool_calls"][0]["function"] == {"name": "add", "arguments": arguments}

    play(server, scene)
