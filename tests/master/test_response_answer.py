"""The response object of one generation: status, usage, and what earlier events said stays."""

from __future__ import annotations

import copy
from typing import Any

from orca_master.bodies.response_requests import ResponseRequest
from orca_master.endpoint.answer_parts import AnswerParser
from orca_master.endpoint.choice_run import Piece
from orca_master.endpoint.response_answer import ResponseAnswer
from orca_master.endpoint.response_objects import begun_response
from orca_master.endpoint.response_output import ResponseOutput
from orca_master.text.reasoning import ReasoningParser
from orca_master.text.tool_calls import FORMATS, ToolCallParser


def answer(parser: AnswerParser | None = None) -> ResponseAnswer:
    response = begun_response(ResponseRequest(input="a"), "resp_1", 5, "m", False)
    output = ResponseOutput("resp_1", lambda index: "")
    return ResponseAnswer(response, 3, parser or AnswerParser(None, None), output, lambda piece: [], lambda: 9.5)


def piece(text: str, reason: Any = None, num_cached: int = 0) -> Piece:
    return Piece(0, text, 7, None, reason, num_cached)


def test_a_complete_response():
    state = answer()
    begun = state.begin()
    assert [event["type"] for event in begun] == ["response.created", "response.in_progress"]
    before = copy.deepcopy(begun)
    state.feed(piece("a", num_cached=2))
    state.feed(piece("b", "stop"))
    last = state.end()[-1]
    assert last == {"type": "response.completed", "response": state.response}
    assert (state.response["status"], state.response["completed_at"]) == ("completed", 9)
    assert state.response["usage"] == {
        "input_tokens": 3,
        "input_tokens_details": {"cached_tokens": 2},
        "output_tokens": 2,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 5,
    }
    assert begun == before, "the events at the beginning do not change"


def test_a_response_that_was_cut():
    state = answer()
    state.feed(piece("a", "length"))
    assert state.end()[-1]["type"] == "response.incomplete"
    response = state.response
    assert (response["status"], response["completed_at"]) == ("incomplete", None)
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert response["output"][0]["status"] == "incomplete"


def test_a_call_that_ends_within_itself_is_incomplete():
    """The model, or a stop string, has ended the answer: nobody should make a call with a part of its arguments."""
    for end, status in (('{"x": ', "incomplete"), ('{"x": 1}}', "completed")):
        state = answer(AnswerParser(None, ToolCallParser(FORMATS["hermes"], {"add"})))
        state.feed(piece('<tool_call>{"name": "add", "arguments": '))
        state.feed(piece(end, "stop"))
        state.end()
        (call,) = state.response["output"]
        assert (call["type"], call["status"], state.response["status"]) == ("function_call", status, "completed")


def test_a_response_that_failed_has_what_was_generated():
    state = answer()
    state.feed(piece("a"))
    (event,) = state.fail("server_error", "lost")
    assert event["type"] == "response.failed"
    assert event["response"]["error"] == {"code": "server_error", "message": "lost"}
    (message,) = event["response"]["output"]
    assert (message["status"], message["content"][0]["text"]) == ("incomplete", "a")
    (event,) = answer().fail("server_error", "lost")
    assert (event["response"]["output"], event["response"]["status"]) == ([], "failed")


def test_tokens_of_the_reasoning_are_counted_with_its_tags():
    state = answer(AnswerParser(ReasoningParser("qwen3"), None))
    for text in ("<think>", "a", "b", "</think>", "c"):
        state.feed(piece(text))
    state.feed(piece("", "stop"))
    state.end()
    assert state.response["usage"] is not None
    assert state.response["usage"]["output_tokens_details"] == {"reasoning_tokens": 4}
    assert state.response["usage"]["output_tokens"] == 6
