"""Chunks of a stream: encoding what does not vary once gives the same JSON as encoding each chunk."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any, cast

import pytest
from orca_master.bodies.openai_requests import ChatCompletionRequest, CompletionRequest
from orca_master.endpoint.answer_parts import AnswerFormat
from orca_master.endpoint.chat import ChatFormat, token_logprob
from orca_master.endpoint.choice_run import Choice, Piece
from orca_master.endpoint.completions import CompletionFormat
from orca_master.endpoint.generation import Generation
from orca_master.endpoint.prompt_logprobs import SLICE_NUMBERS, TokenTexts
from orca_master.endpoint.responding import OPENING_CHUNKS, ChunkJson, Format, answer_of, dump, events, usage_of
from orca_master.engine.faults import WorkerLostError
from orca_master.errors import EngineError, EngineUnavailableError, QueueFullError, RequestError, RequestTimeoutError
from orca_master.text.tokenizer import TextCodec
from orca_protos import engine_pb2 as pb

CHOICE = cast(Choice, None)
TEXTS = ["a", "", "text", "\0", '"\\\n', "é 日本 😀", "\u2028", "}]", '"finish_reason":null']
PIECES = [
    *(Piece(index, text, 7, None, None) for text in TEXTS for index in (0, 1)),
    Piece(1, "end", 7, None, "stop"),
    Piece(0, "more", 7, None, None),
    Piece(0, "", 7, None, "length"),
]


def formats(tmp_path, **fields: Any) -> list[Format]:
    codec = TextCodec(tmp_path)
    chat_fields = {"messages": [{"role": "user", "content": "x"}], **fields}
    if "logprobs" in fields:
        chat_fields["logprobs"] = True
    return [
        CompletionFormat(CompletionRequest.model_validate({"prompt": [1], "n": 2, **fields}), '"m\0"', codec),
        ChatFormat(ChatCompletionRequest.model_validate({"n": 2, **chat_fields}), "text", codec, AnswerFormat()),
    ]


@pytest.mark.parametrize("fields", [{}, {"return_token_ids": True}, {"logprobs": 1}])
def test_the_json_is_that_of_each_chunk(tmp_path, fields):
    generation = Generation("text", 5, [[1]], [CHOICE, CHOICE], 2, 9)
    pieces = PIECES
    if "logprobs" in fields:
        logprobs = pb.Logprobs(sampled=-0.5, token=[3], logprob=[-0.25])
        pieces = [replace(piece, logprobs=logprobs) for piece in PIECES]
    for style, separate in zip(formats(tmp_path, **fields), formats(tmp_path, **fields), strict=True):
        chunks = ChunkJson(generation, style)
        for piece in pieces:
            data = dump(separate.chunk(generation, piece))
            assert chunks.of(piece) == json.dumps(data, ensure_ascii=False, separators=(",", ":"))


def test_chunks_that_differ_in_their_text_only_are_built_once(tmp_path):
    for style in formats(tmp_path):
        built = []

        class Counted:
            only_text_varies = True
            opening = choice = answer = usage_chunk = None

            def chunk(self, generation, piece, style=style, built=built):
                built.append(piece)
                return style.chunk(generation, piece)

        chunks = ChunkJson(Generation("id", 5, [[1]], [CHOICE, CHOICE], 2, 9), Counted())
        for piece in PIECES:
            chunks.of(piece)
        assert len(built) == 4, "the first of each of two choices, and the last"


def test_the_beginning_of_a_stream_has_the_tokens_of_the_prompt_of_each_choice(tmp_path):
    codec = TextCodec(tmp_path)
    choices = [Choice(index, None, codec.decoder([], False, False), 0) for index in range(2)]
    generation = Generation("text", 5, [[1, 7]], choices, 2, 9)
    for style in formats(tmp_path, return_token_ids=True):
        opening = [choice.prompt_token_ids for chunk in style.opening(generation) for choice in chunk.choices]
        assert set(map(tuple, opening)) == {(1, 7)}
    _, chat = formats(tmp_path)
    assert {choice.prompt_token_ids for chunk in chat.opening(generation) for choice in chunk.choices} == {None}


@pytest.mark.parametrize("top", [None, 2])
def test_log_probabilities_of_a_long_chat_answer_are_written_a_few_at_a_time(tmp_path, top):
    """An answer of 30,000 tokens with 20 alternatives each took ten seconds at once: nobody else was served."""

    def style_with(**fields: Any) -> ChatFormat:
        body = ChatCompletionRequest.model_validate({"messages": [{"role": "user", "content": "x"}], **fields})
        return ChatFormat(body, "m", TextCodec(tmp_path), AnswerFormat())

    style = style_with(logprobs=True, top_logprobs=top)
    generation = Generation("id", 5, [[1]], [CHOICE], 1, 9)
    usage = usage_of(generation, 3000, 0)
    alternatives = pb.Logprobs(sampled=-0.5, token=[3, 7][: top or 0], logprob=[-0.25, -0.5][: top or 0])
    pieces = [Piece(0, "é", 7, alternatives, None)] * 3000 + [Piece(0, "", 7, None, "length")]
    turns = 0

    async def run() -> bytes:
        answer = asyncio.create_task(answer_of(generation, [pieces], usage, style))

        async def count() -> None:
            nonlocal turns
            while not answer.done():
                turns += 1
                await asyncio.sleep(0)

        await count()
        return await answer

    (choice,) = json.loads(asyncio.run(run()))["choices"]
    expected = json.loads(json.dumps([token_logprob(TokenTexts(TextCodec(tmp_path)), pieces[0])] * 3000))
    assert choice["logprobs"] == {"content": expected}
    assert len(expected[0]["top_logprobs"]) == (top or 0)
    assert turns > 3000 * (1 + (top or 0)) / SLICE_NUMBERS
    (choice,) = json.loads(asyncio.run(answer_of(generation, [pieces], usage, style_with())))["choices"]
    assert choice["logprobs"] is None


@pytest.mark.parametrize("num_choices", [1, OPENING_CHUNKS, 5 * OPENING_CHUNKS + 1])
def test_the_beginning_of_a_stream_is_built_a_few_choices_at_a_time(tmp_path, num_choices):
    """That of 3840 choices with the tokens of their prompts took seconds at once: nobody else was served."""
    codec = TextCodec(tmp_path)
    choices = [Choice(index, None, codec.decoder([], False, False), 0) for index in range(num_choices)]
    generation = Generation("text", 5, [[1, 7]], choices, num_choices, 9)

    async def stream_of(style: Format) -> tuple[list[list[str]], int]:
        async def rest() -> AsyncIterator[list[Piece]]:
            yield [Piece(0, "b", 7, None, "length")]

        async def piece() -> list[Piece]:
            return [Piece(0, "a", 7, None, None)]

        turns = 0

        async def count() -> None:
            nonlocal turns
            while True:
                await asyncio.sleep(0)
                turns += 1

        first = asyncio.create_task(piece())
        await first
        counting = asyncio.create_task(count())
        stream = [together async for together in events(generation, rest(), first, "none", style, None)]
        counting.cancel()
        return stream, turns

    for style in formats(tmp_path, return_token_ids=True):
        stream, turns = asyncio.run(stream_of(style))
        assert max(map(len, stream)) <= OPENING_CHUNKS
        assert [event for together in stream for event in together][num_choices + 2 :] == ["data: [DONE]\n\n"]
        assert turns >= num_choices // OPENING_CHUNKS - 1
        if num_choices < OPENING_CHUNKS:
            assert len(stream[0]) == num_choices + 1, "one write"


@pytest.mark.parametrize(
    ("error", "kind", "code"),
    [
        (RequestTimeoutError("late"), "timeout_error", "request_timeout"),
        (QueueFullError("full"), "rate_limit_error", "queue_full"),
        (EngineError("broken"), "server_error", "engine_error"),
        (EngineUnavailableError("away"), "server_error", "engine_unavailable"),
        (WorkerLostError("lost"), "server_error", "engine_unavailable"),
        (RequestError("no grammar"), "invalid_request_error", None),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_error_that_ends_a_stream_has_the_type_that_it_has_without_a_stream(tmp_path, error, kind, code):
    async def last_event() -> str:
        async def rest() -> AsyncIterator[list[Piece]]:
            raise error
            yield []

        async def piece() -> list[Piece]:
            return [Piece(0, "a", 7, None, None)]

        style, _ = formats(tmp_path)
        first = asyncio.create_task(piece())
        generation = Generation("text", 5, [[1]], [CHOICE], 1, 9)
        return [together async for together in events(generation, rest(), first, "none", style, None)][-1][-1]

    expected = {"message": str(error), "type": kind, "param": None, "code": code}
    assert json.loads(asyncio.run(last_event()).removeprefix("data: ")) == {"error": expected}
