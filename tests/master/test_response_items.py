"""Items of the Responses API: those of answers are input again, others are refused with the supported types."""

from __future__ import annotations

from typing import Any

import pytest
from orca_master.bodies.lengths import MIN_CHARACTERS, Lengths
from orca_master.bodies.response_items import InputItems, MessageItem, text_of
from pydantic import TypeAdapter, ValidationError

ITEMS: TypeAdapter[list[Any]] = TypeAdapter(InputItems)


def test_items_of_an_answer_are_input_again():
    items = ITEMS.validate_python(
        [
            {"role": "user", "content": "a"},
            {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "b"}],
             "encrypted_content": None, "status": "completed"},
            {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "phase": None,
             "content": [{"type": "output_text", "text": "c", "annotations": [], "logprobs": []},
                         {"type": "output_text", "text": "d"}]},
            {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "f", "arguments": "{}",
             "status": "completed"},
            {"type": "function_call_output", "call_id": "call_1", "output": [{"type": "input_text", "text": "e"}]},
        ]
    )  # fmt: skip
    assert [item.type for item in items] == ["message", "reasoning", "message", "function_call", "function_call_output"]
    assert [item.num_characters for item in items] == [1, 1, 2, 2, 1]
    assert text_of(items[2].content) == "cd"
    assert items[1].text == "b"


@pytest.mark.parametrize(
    ("item", "words"),
    [
        ({"type": "item_reference", "id": "msg_1"}, "must be one of message, function_call"),
        ("text", "must be one of message, function_call"),
        ({"role": "tool", "content": "a"}, "'user', 'assistant', 'system' or 'developer'"),
        ({"role": "user", "content": [{"type": "input_image", "image_url": "a"}]}, "input_text or output_text"),
        ({"role": "user", "content": [{"type": "input_text", "text": "a", "more": 1}]}, "Extra inputs"),
        ({"type": "reasoning", "summary": [], "encrypted_content": "abc"}, "Extra inputs"),
    ],
)
def test_other_items_are_refused(item, words):
    with pytest.raises(ValidationError, match=words):
        ITEMS.validate_python([item])


def test_the_characters_of_all_items_are_limited():
    items = [{"role": "user", "content": "a" * (MIN_CHARACTERS // 2 + 1)}] * 2
    assert len(ITEMS.validate_python(items)) == 2
    with pytest.raises(ValidationError, match="characters exceed the limit"):
        ITEMS.validate_python(items, context=Lengths(16))
    assert MessageItem(role="user", content="abc").num_characters == 3
