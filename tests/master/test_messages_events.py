"""Events of a message: one order of blocks, whole tool calls, and a message that is what its events make up."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import jiter
import pytest
from hypothesis import given
from hypothesis import strategies as st
from orca_master.bodies.openai_requests import ChatCompletionRequest
from orca_master.endpoint.answer_parts import AnswerFormat
from orca_master.endpoint.choice_run import Piece
from orca_master.endpoint.messages_events import MessageEvents, input_of, message_of
from orca_master.text.tool_calls import FORMATS

ANSWER = (
    "<think>\nHm.\n</think>\n\nYes. "
    '<tool_call>{"name": "add", "arguments": {"x": 1}}</tool_call> and '
    '<tool_call>{"name": "now"}</tool_call>'
)
BLOCKS = [
    ("thinking", "Hm.\n"),
    ("text", "Yes. "),
    ("add", {"x": 1}),
    ("text", " and "),
    ("now", {}),
]


def events_of(
    pieces: list[Piece], tools: bool = True, shows_thinking: bool = True, fills_context: bool = False
) -> list[dict[str, Any]]:
    functions = [{"type": "function", "function": {"name": name}} for name in ("add", "now")]
    body = ChatCompletionRequest.model_validate(
        {"messages": [{"role": "user", "content": ""}], "tools": functions if tools else []}
    )
    parser = AnswerFormat(FORMATS["hermes"], "qwen3").parser(body, ())
    events = MessageEvents("msg-1", "m", 40, parser, "call_{}".format, shows_thinking, fills_context)
    return [events.start(pieces[:1]), *itertools.chain.from_iterable(map(events.of, pieces))]


def pieces_of(answer: str, sizes: Sequence[int] = (1,), reason: Any = "stop", **last: Any) -> list[Piece]:
    texts, rest = [], answer
    for size in itertools.cycle(sizes):
        texts.append(rest[:size])
        rest = rest[size:]
        if not rest:
            break
    pieces = [Piece(0, text, 7, None, None) for text in texts[:-1]]
    return [*pieces, Piece(0, texts[-1], 7, None, reason, **last)]


def blocks(message: dict[str, Any]) -> list[tuple[str, Any]]:
    return [
        (block["name"], block["input"]) if block["type"] == "tool_use" else (block["type"], block[block["type"]])
        for block in message["content"]
    ]


@given(st.lists(st.integers(1, 9), min_size=1, max_size=5))
def test_blocks_are_in_the_order_of_the_answer_however_its_text_is_cut(sizes):
    message = message_of(events_of(pieces_of(ANSWER, sizes)))
    assert blocks(message) == BLOCKS
    assert [block["id"] for block in message["content"] if "id" in block] == ["call_0", "call_1"]
    assert (message["stop_reason"], message["stop_sequence"]) == ("tool_use", None)


def test_every_block_is_opened_filled_and_closed_before_the_next():
    events = events_of(pieces_of(ANSWER))
    kinds = [(event["type"], event.get("index")) for event in events]
    assert kinds[0] == ("message_start", None)
    assert kinds[-2:] == [("message_delta", None), ("message_stop", None)]
    # All deltas of a block count as one.
    expected = [(f"content_block_{step}", index) for index in range(len(BLOCKS)) for step in ("start", "delta", "stop")]
    assert [kind for kind, _ in itertools.groupby(kinds[1:-2])] == expected
    starts = [event["content_block"] for event in events if event["type"] == "content_block_start"]
    assert starts[0] == {"type": "thinking", "thinking": "", "signature": ""}
    assert starts[1] == {"type": "text", "text": ""}
    assert starts[2] == {"type": "tool_use", "id": "call_0", "name": "add", "input": {}}


def test_usage_separates_what_the_prefix_cache_had():
    first, *rest = pieces_of("abc")
    cached = Piece(0, first.text, 7, None, None, num_cached=16)
    events = events_of([cached, *rest])
    usage = {"cache_creation_input_tokens": 0, "cache_read_input_tokens": 16, "input_tokens": 24, "output_tokens": 3}
    assert events[0]["message"]["usage"] == usage | {"output_tokens": 0}
    assert events[-2]["usage"] == message_of(events)["usage"] == usage


@pytest.mark.parametrize(
    ("last", "options", "reason"),
    [
        ({}, {}, "end_turn"),
        ({"reason": "length"}, {}, "max_tokens"),
        ({"reason": "length"}, {"fills_context": True}, "model_context_window_exceeded"),
        ({}, {"fills_context": True}, "end_turn"),
        ({"stop_string": "x"}, {}, "stop_sequence"),
    ],
)
def test_stop_reasons(last, options, reason):
    message = message_of(events_of(pieces_of("abc", **last), **options))
    assert (message["stop_reason"], message["stop_sequence"]) == (reason, last.get("stop_string"))
    assert blocks(message) == [("text", "abc")]


def test_reasoning_and_calls_that_nobody_asked_for():
    without = message_of(events_of(pieces_of(ANSWER), shows_thinking=False))
    assert blocks(without) == BLOCKS[1:]
    text = message_of(events_of(pieces_of(ANSWER), tools=False))
    assert [kind for kind, _ in blocks(text)] == ["thinking", "text"]
    assert text["stop_reason"] == "end_turn"


@pytest.mark.parametrize(
    ("arguments", "reason", "expected"),
    [
        ('{"x": 1', "length", "max_tokens"),
        ('{"x": NaN}}', "stop", "end_turn"),
        ('{"x": 01}}', "stop", "end_turn"),
        ("[1]}", "stop", "end_turn"),
        ('"no JSON"}', "stop", "end_turn"),
    ],
)
def test_a_call_without_an_object_is_left_out(arguments, reason, expected):
    answer = f'Yes. <tool_call>{{"name": "add", "arguments": {arguments}</tool_call>'
    message = message_of(events_of(pieces_of(answer, reason=reason)))
    assert blocks(message) == [("text", "Yes. ")]
    assert message["stop_reason"] == expected


def test_an_empty_answer_has_no_block():
    events = events_of(pieces_of(""))
    assert [event["type"] for event in events] == ["message_start", "message_delta", "message_stop"]
    assert message_of(events)["content"] == []


@pytest.mark.parametrize("text", ["", "1", "[]", "{", '{"a": Infinity}', "[" * 100_000, '{"a": ' * 100_000])
def test_what_is_no_input(text):
    assert input_of(text) is None


def test_lone_surrogates_make_no_input():
    """Official clients read the parts of an input by jiter, which refuses them: the stream would end with an error."""
    lone = '{"a": "\\ud800"}'
    with pytest.raises(ValueError, match="escape"):
        jiter.from_json(lone.encode())
    assert input_of(lone) is None
    assert input_of('{"a": "\\ud83d\\ude00"}') == {"a": "\U0001f600"}


def test_a_piece_that_ends_a_call_and_begins_a_text_completes_the_call_first():
    texts = ('<tool_call>{"name": "add", "arguments": {"x": 1', "}}. Bye", "")
    message = message_of(events_of([Piece(0, text, 7, None, None if text else "stop") for text in texts]))
    assert blocks(message) == [("add", {"x": 1}), ("text", ". Bye")]


def test_a_number_that_json_cannot_write_makes_no_input():
    assert input_of('{"a": 1e999}') is None
    assert input_of('{"a": 1.5}') == {"a": 1.5}
