"""Stored responses as JSON: a conversation is read from them, and the items of their input."""

from __future__ import annotations

from typing import Any

import pytest
from orca_master.bodies.lengths import MAX_ENTRIES
from orca_master.bodies.response_requests import ResponseRequest
from orca_master.endpoint.answer_parts import Parts
from orca_master.endpoint.response_objects import begun_response
from orca_master.endpoint.response_output import ResponseOutput
from orca_master.endpoint.response_prompt import chat_request
from orca_master.endpoint.response_record import conversation_of, input_of, record, response_of
from orca_master.endpoint.response_store import FoundResponse, Phase
from orca_master.errors import RequestError
from orca_master.text.tool_calls import CallDelta

LOGPROB: Any = {"token": "a", "logprob": -0.5, "bytes": [97], "top_logprobs": []}
BODY = ResponseRequest.model_validate(
    {
        "input": [
            {"role": "user", "content": "a\ud800"},
            {"type": "reasoning", "id": "rs_own", "content": [{"type": "reasoning_text", "text": "r"}]},
            {"role": "assistant", "content": [{"type": "output_text", "text": "b", "logprobs": [LOGPROB]}]},
            {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "1", "output": [{"type": "input_text", "text": "é"}]},
        ]
    }
)


def recorded() -> bytes:
    response = begun_response(BODY, "resp_12", 5, "m", True)
    output = ResponseOutput("resp_12", lambda index: f"call_{index}")
    output.feed(Parts("t", "u", [CallDelta(0, "g", "{}")]), [LOGPROB])
    output.end("completed")
    return record({**response, "output": output.items}, BODY.items)  # type: ignore[typeddict-item]


def test_the_response_is_unchanged():
    response = response_of(FoundResponse(recorded(), Phase.STORED, 0))
    assert response["id"] == "resp_12"
    assert [item["type"] for item in response["output"]] == ["reasoning", "message", "function_call"]


@pytest.mark.parametrize(
    ("phase", "status"),
    [
        (Phase.STORED, "queued"),
        (Phase.QUEUED, "queued"),
        (Phase.IN_PROGRESS, "in_progress"),
        (Phase.ENDED, "queued"),
        (Phase.CANCELLED, "cancelled"),
        (Phase.LOST, "failed"),
    ],
)
def test_the_status_is_that_of_the_phase_or_of_the_record(phase, status):
    body = ResponseRequest(input="a", background=True)
    data = record(begun_response(body, "resp_12", 5, "m", True), body.items)
    response = response_of(FoundResponse(data, phase, 0))
    assert response["status"] == status
    assert (response["error"] is not None) == (phase is Phase.LOST)


def test_input_items_have_ids_and_parts():
    items = input_of(recorded())
    assert [item["id"] for item in items] == ["msg_12i0000", "rs_own", "msg_12i0002", "fc_12i0003", "fco_12i0004"]
    assert {item["status"] for item in items} == {"completed"}
    assert items[0]["content"] == [{"type": "input_text", "text": "a\ud800"}]
    assert items[2]["content"] == [{"type": "output_text", "text": "b", "annotations": []}]
    assert items[4]["output"] == "é"


def test_the_conversation_is_that_of_the_items_themselves():
    items = conversation_of([recorded()])
    output = response_of(FoundResponse(recorded(), Phase.STORED, 0))["output"]
    last = {"type": "function_call_output", "call_id": "call_0", "output": "x"}
    whole = ResponseRequest.model_validate({"input": [*BODY.items, *output, last]})
    continued = ResponseRequest.model_validate({"input": [last]})
    assert chat_request(continued, items) == chat_request(whole)


def test_the_items_of_a_conversation_are_bounded():
    """They are validated on the event loop, and clients can store any number of responses."""
    body = ResponseRequest.model_validate({"input": [{"role": "user", "content": "a"}] * 4096})
    data = record(begun_response(body, "resp_12", 5, "m", True), body.items)
    assert len(conversation_of([data] * (MAX_ENTRIES // 4096))) == MAX_ENTRIES
    with pytest.raises(RequestError, match="previous_response_id: the conversation has more than 16384 items") as error:
        conversation_of([data] * (MAX_ENTRIES // 4096 + 1))
    assert error.value.field == "previous_response_id"
