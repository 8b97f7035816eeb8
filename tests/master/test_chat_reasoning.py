"""The reasoning of a chat: how many tokens it has, and answers without it, through the official client."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from openai.types.chat import ChatCompletionChunk
from support.scripted_engine import END, MODEL, Scripted, make_model

QUESTION: Any = [{"role": "user", "content": "1 + 1?"}]
THOUGHT = "<think>why</think>two"
USAGE: Any = {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}
HIDDEN: Any = {"extra_body": {"include_reasoning": False, "return_token_ids": True}, "logprobs": True}


def play(scripted: Scripted, scene: Callable[[Any], Awaitable[None]]) -> None:
    async def run() -> None:
        async with scripted as client:
            await scene(client)

    asyncio.run(asyncio.wait_for(run(), 60))


def scripted(tmp_path, answer: str, **options: Any) -> Scripted:
    model = make_model(tmp_path, "{{ messages | tojson }}", ("<think>", "</think>"))
    return Scripted(model, f"{answer}{END}", **options)


async def chunks(client: Any, **options: Any) -> list[ChatCompletionChunk]:
    stream = await client.chat.completions.create(model=MODEL, messages=QUESTION, **USAGE, **options)
    return [chunk async for chunk in stream]


@pytest.mark.parametrize(
    ("reasoning_parser", "answer", "count"),
    [
        ("qwen3", THOUGHT, 5),  # with both tags, each a token
        ("qwen3", "two", 0),
        ("qwen3", "<think>why", 5),  # also the token that ends the answer
        ("deepseek_r1", THOUGHT, 5),
        ("deepseek_r1", "why</think>two", 4),
    ],
)
def test_the_usage_has_the_tokens_of_the_reasoning(tmp_path, reasoning_parser, answer, count):
    async def scene(client: Any) -> None:
        whole = await client.chat.completions.create(model=MODEL, messages=QUESTION, n=2)
        assert whole.usage.completion_tokens_details.reasoning_tokens == 2 * count
        *_, last = streamed = await chunks(client, n=2)
        assert last.usage == whole.usage
        counts = [chunk.usage.completion_tokens_details.reasoning_tokens for chunk in streamed]
        assert counts == sorted(counts)
        assert set(counts) == set(range(2 * count + 1))
        response = await client.responses.create(model=MODEL, input="1 + 1?")
        assert response.usage.output_tokens_details.reasoning_tokens == count

    play(scripted(tmp_path, answer, reasoning_parser=reasoning_parser), scene)


@pytest.mark.parametrize(
    ("answer", "count"),
    [
        ("\nwhy</think>two", 5),
        ("</think>two", 1),
        ("\n", 2),  # with the token that ends the answer, as below
        ("", 1),
        ("<thi", 5),
    ],
)
def test_tokens_that_are_held_back_at_the_beginning_are_counted(tmp_path, answer, count):
    async def scene(client: Any) -> None:
        whole = await client.chat.completions.create(model=MODEL, messages=QUESTION)
        *_, last = await chunks(client)
        response = await client.responses.create(model=MODEL, input="1 + 1?")
        assert whole.usage.completion_tokens_details.reasoning_tokens == count
        assert last.usage == whole.usage
        assert response.usage.output_tokens_details.reasoning_tokens == count

    play(scripted(tmp_path, answer, reasoning_parser="deepseek_r1"), scene)


def test_without_a_parser_there_is_no_such_number(tmp_path):
    async def scene(client: Any) -> None:
        whole = await client.chat.completions.create(model=MODEL, messages=QUESTION)
        assert "completion_tokens_details" not in whole.usage.to_dict()
        assert all("completion_tokens_details" not in chunk.usage.to_dict() for chunk in await chunks(client))

    play(scripted(tmp_path, THOUGHT), scene)


def test_reasoning_can_be_left_out(tmp_path):
    """It is generated and counted; ids and log probabilities of tokens, which would show it, are left out as well."""

    async def scene(client: Any) -> None:
        whole = await client.chat.completions.create(model=MODEL, messages=QUESTION, **HIDDEN)
        (choice,) = whole.choices
        assert choice.message.to_dict() == {"role": "assistant", "content": "two"}
        assert (choice.logprobs, hasattr(choice, "token_ids")) == (None, False)
        assert whole.usage.completion_tokens_details.reasoning_tokens == 5
        streamed = await chunks(client, **HIDDEN)
        deltas = [choice.delta.to_dict() for chunk in streamed for choice in chunk.choices]
        assert "".join(delta.pop("content") for delta in deltas) == "two"
        assert [delta for delta in deltas if delta] == [{"role": "assistant"}]
        assert not any(
            choice.logprobs or hasattr(choice, "token_ids") for chunk in streamed for choice in chunk.choices
        )
        assert streamed[-1].usage == whole.usage

    play(scripted(tmp_path, THOUGHT, reasoning_parser="qwen3"), scene)


def test_an_answer_whose_reasoning_is_not_known_is_whole(tmp_path):
    async def scene(client: Any) -> None:
        (choice,) = (await client.chat.completions.create(model=MODEL, messages=QUESTION, **HIDDEN)).choices
        assert (choice.message.content, len(choice.token_ids)) == ("two", 4)

    play(scripted(tmp_path, "two"), scene)


def test_reasoning_that_is_left_out_precedes_an_answer_with_a_grammar(tmp_path):
    """Hiding it changes no token. vLLM's grammar holds from the first token on then (docs/how-to)."""
    made = scripted(tmp_path, THOUGHT, reasoning_parser="qwen3")

    async def scene(client: Any) -> None:
        for hidden in ({}, {"include_reasoning": False}):
            fields: Any = {"extra_body": {"structured_outputs": {"choice": ["two"]}, **hidden}}
            answer = await client.chat.completions.create(model=MODEL, messages=QUESTION, **fields)
            assert answer.choices[0].message.content == "two"
            assert made.engine.submissions[-1].grammar.reasoning == "qwen3"

    play(made, scene)
