"""Output items and events of the Responses API, from the parts of an answer."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
from orca_master.endpoint.answer_parts import Parts
from orca_master.endpoint.response_objects import wire_json
from orca_master.endpoint.response_output import ResponseOutput
from orca_master.text.tool_calls import CallDelta

LOGPROB: Any = {"token": "a", "logprob": -0.5, "bytes": [97], "top_logprobs": []}


def text(content: str) -> Parts:
    return Parts("", content, [])


def reasoning(content: str) -> Parts:
    return Parts(content, "", [])


def call(index: int, name: str | None, arguments: str = "") -> Parts:
    return Parts("", "", [CallDelta(index, name, arguments)])


def play(*parts: Parts, status: Any = "completed") -> tuple[ResponseOutput, list[dict[str, Any]]]:
    output = ResponseOutput("resp_12", lambda index: f"call_{index}")
    events = [event for part in parts for event in output.feed(part, [])] + output.end(status)
    return output, events


def wire(value: Any) -> Any:
    """Return what clients read."""
    return json.loads(wire_json(value))


def kinds(events: list[dict[str, Any]]) -> list[str]:
    return [event["type"].removeprefix("response.") for event in events]


def test_events_of_a_message_come_in_the_documented_order():
    output, events = play(text("a"), text(""), text("b"))
    assert kinds(events) == [
        "output_item.added", "content_part.added", "output_text.delta", "output_text.delta", "output_text.done",
        "content_part.done", "output_item.done",
    ]  # fmt: skip
    part = {"type": "output_text", "text": "ab", "annotations": [], "logprobs": []}
    message = {"type": "message", "id": "msg_120000", "status": "completed", "role": "assistant", "content": [part]}
    assert wire(output.items) == [message]
    assert events[0]["item"] == {**message, "status": "in_progress", "content": []}
    assert events[1]["part"] == {**part, "text": ""}
    assert [event["delta"] for event in events[2:4]] == ["a", "b"]
    assert (events[4]["text"], *wire([events[5]["part"], events[6]["item"]])) == ("ab", part, message)
    place = {"item_id": "msg_120000", "output_index": 0, "content_index": 0}
    assert all(place.items() <= event.items() for event in events[1:6])


def test_events_of_reasoning_and_of_a_call():
    output, events = play(reasoning("a"), reasoning("b"), call(0, "f"), call(0, None, '{"x"'), call(0, None, ": 1}"))
    assert kinds(events) == [
        "output_item.added", "content_part.added", "reasoning_text.delta", "reasoning_text.delta",
        "reasoning_text.done", "content_part.done", "output_item.done",
        "output_item.added", "function_call_arguments.delta", "function_call_arguments.delta",
        "function_call_arguments.done", "output_item.done",
    ]  # fmt: skip
    thought, called = output.items
    assert thought == {
        "type": "reasoning",
        "id": "rs_120000",
        "status": "completed",
        "summary": [],
        "content": [{"type": "reasoning_text", "text": "ab"}],
    }
    assert called == {
        "type": "function_call",
        "id": "fc_120001",
        "status": "completed",
        "call_id": "call_0",
        "name": "f",
        "arguments": '{"x": 1}',
    }
    assert events[7]["item"] == {**called, "arguments": "", "status": "in_progress"}
    assert events[10]["arguments"] == '{"x": 1}'
    assert [event["output_index"] for event in events] == [0] * 7 + [1] * 5


def test_each_item_ends_before_the_next_begins():
    output, events = play(
        Parts("r", "a", [CallDelta(0, "f", "{}"), CallDelta(1, "g", "{}")]), text("b"), status="incomplete"
    )
    assert [item["type"] for item in output.items] == [
        "reasoning",
        "message",
        "function_call",
        "function_call",
        "message",
    ]
    assert [item["status"] for item in output.items] == ["completed"] * 4 + ["incomplete"]
    assert len({item["id"] for item in output.items}) == 5
    open_items = 0
    for kind in kinds(events):
        open_items += (kind == "output_item.added") - (kind == "output_item.done")
        assert open_items in (0, 1)
    assert Counter(kinds(events))["output_item.done"] == 5
    assert events[-1]["item"] == output.items[-1]


def test_an_answer_without_text_has_an_empty_message():
    output, events = play()
    (message,) = output.items
    assert message["type"] == "message"
    assert message["content"][0]["text"] == ""
    assert kinds(events)[-3:] == ["output_text.done", "content_part.done", "output_item.done"]
    assert [item["type"] for item in play(call(0, "f", "{}"))[0].items] == ["function_call"]


def test_log_probabilities_are_those_of_the_text():
    output = ResponseOutput("resp_1", lambda index: "")
    assert output.feed(reasoning("r"), [LOGPROB]) != []
    assert output.feed(text(""), [LOGPROB]) == [], "a part of a character"
    events = output.feed(text("é"), [LOGPROB])
    assert events[-1]["logprobs"] == [LOGPROB] * 2
    assert output.feed(text("b"), [LOGPROB])[-1]["logprobs"] == [LOGPROB]
    output.feed(text(""), [LOGPROB])  # the end of sequence has no text
    events = output.end("completed")
    done = next(event for event in events if event["type"] == "response.output_text.done")
    assert wire(done)["logprobs"] == [LOGPROB] * 3


def test_log_probabilities_are_encoded_when_they_come(monkeypatch):
    """Not at the end, where five events and the record of a response have all of them, nor once for each event."""
    output = ResponseOutput("resp_1", lambda index: "")
    logprobs = [{**LOGPROB, "token": token} for token in ("a", '"', "é", "\ud800")]
    for place, logprob in enumerate(logprobs):
        output.feed(text(str(place)), [logprob])
    with monkeypatch.context() as patch:
        texts: list[str] = []
        dumps = json.dumps
        patch.setattr(json, "dumps", lambda *values, **options: texts.append(dumps(*values, **options)) or texts[-1])
        events = [wire_json(event) for event in output.end("completed")]
        response = wire_json({"output": output.items, "metadata": {"a": "\ud800"}})
    assert len(texts) == 3 + 2, "with the lone surrogate once more"
    assert not any('"bytes"' in text for text in texts)
    done, part, item = map(json.loads, events)
    (message,) = json.loads(response)["output"]
    contents = [done, part["part"], *item["item"]["content"], *message["content"]]
    assert [content["logprobs"] for content in contents] == [logprobs] * 4


def test_each_message_has_log_probabilities_of_its_own():
    output = ResponseOutput("resp_1", lambda index: "")
    output.feed(text("aa"), [LOGPROB] * 2)
    output.feed(call(0, "f", "{}"), [])
    output.feed(text("b"), [LOGPROB])
    output.end("completed")
    first, _, second = wire(output.items)
    assert [message["content"][0]["logprobs"] for message in (first, second)] == [[LOGPROB] * 2, [LOGPROB]]


def test_log_probabilities_of_markers_and_of_space_before_a_text_are_left_out():
    def of(token: str) -> Any:
        return {**LOGPROB, "token": token}

    output = ResponseOutput("resp_1", lambda index: "")
    output.feed(reasoning("r"), [of("r")])
    for token in ("</think>", "\n\n"):
        assert output.feed(text(""), [of(token)]) == []
    events = output.feed(text("Hi"), [of("Hi")])
    assert events[-1]["logprobs"] == [of("Hi")]
    assert output.feed(text(""), [of(" th")]) == [], "it may begin a stop string"
    assert output.feed(text(" there"), [of("ere")])[-1]["logprobs"] == [of(" th"), of("ere")]


@pytest.mark.parametrize(
    ("tokens", "said", "kept"),
    [
        (["</think>", "\n\n", "<"], "<", 1),
        (["</think>", "\n\n", " Hi"], "Hi", 1),
        (["</think>", " Hel", "lo STOP"], "Hello", 2),
        (["</think>", "\n\n", "\ufffd", "\ufffd"], "é", 2),
        (["a", "b"], "ab", 2),
        (["</think>", "\n", "Hi"], "\nHi", 2),
        (["x"], "y", 1),
    ],
)
def test_log_probabilities_of_the_first_text_begin_with_its_first_token(tokens, said, kept):
    output = ResponseOutput("resp_1", lambda index: "")
    for token in tokens[:-1]:
        output.feed(text(""), [{**LOGPROB, "token": token}])
    events = output.feed(text(said), [{**LOGPROB, "token": tokens[-1]}])
    assert [entry["token"] for entry in events[-1]["logprobs"]] == tokens[-kept:]


def test_all_log_probabilities_are_kept_where_all_tokens_belong_to_texts():
    """A token that may begin a stop string waits, whatever the next one is."""
    output = ResponseOutput("resp_1", lambda index: "", is_plain=True)
    output.feed(text(""), [{**LOGPROB, "token": "-"}])
    assert len(output.feed(text("-"), [{**LOGPROB, "token": "-"}])[-1]["logprobs"]) == 2


def test_a_piece_that_ends_a_call_and_begins_a_text_completes_the_call_first():
    both = Parts("", ". ", [CallDelta(0, None, "}"), CallDelta(1, "now", "{}")])
    output, _ = play(call(0, "add", '{"x": 1'), both)
    add, message, now = output.items
    assert (add["type"], message["type"], now["type"]) == ("function_call", "message", "function_call")
    assert (add["arguments"], message["content"][0]["text"], now["arguments"]) == ('{"x": 1}', ". ", "{}")
