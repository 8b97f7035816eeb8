"""From requests of the Responses API to chat requests."""

from __future__ import annotations

from array import array
from typing import Any

import pytest
from orca_master.bodies.lengths import MIN_CHARACTERS, Lengths
from orca_master.bodies.openai_requests import ChatCompletionRequest
from orca_master.bodies.response_items import FunctionCallItem, MessageItem
from orca_master.bodies.response_requests import LOGPROBS, ResponseRequest
from orca_master.bodies.sampling_fields import SamplingFields
from orca_master.endpoint.response_prompt import chat_request, in_response_fields, response_fields
from orca_master.errors import QueueFullError, RequestError


def chat(earlier: list[Any] | None = None, **fields: Any) -> ChatCompletionRequest:
    body = ResponseRequest.model_validate({"input": "a", **fields})
    before = ResponseRequest.model_validate({"input": earlier}).items if earlier else []
    return chat_request(body, before)


def messages(*items: dict[str, Any], **fields: Any) -> list[dict[str, Any]]:
    return [
        message.model_dump(exclude_unset=True, exclude_none=True)
        for message in chat(input=list(items), **fields).messages
    ]


def said(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": [{"type": "output_text", "text": text}]}


def thought(text: str) -> dict[str, Any]:
    return {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": text}]}


def call(number: int, arguments: str = "{}") -> dict[str, Any]:
    return {"type": "function_call", "call_id": f"call_{number}", "name": "f", "arguments": arguments}


def result(number: int, text: str = "r") -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": f"call_{number}", "output": text}


def wire_call(number: int, arguments: str = "{}") -> dict[str, Any]:
    return {"id": f"call_{number}", "type": "function", "function": {"name": "f", "arguments": arguments}}


USER = {"role": "user", "content": "q"}


def test_instructions_come_first():
    assert messages(USER, instructions="be brief") == [{"role": "system", "content": "be brief"}, USER]
    parts = {"role": "developer", "content": [{"type": "input_text", "text": text} for text in "ab"]}
    assert messages(parts) == [{"role": "developer", "content": "ab"}]


def test_items_of_one_answer_are_one_message():
    assert messages(USER, thought("t"), said("a"), call(1), call(2, '{"x": 1}'), said("b"), result(1), result(2)) == [
        USER,
        {
            "role": "assistant",
            "reasoning_content": "t",
            "content": "ab",
            "tool_calls": [wire_call(1), wire_call(2, '{"x": 1}')],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": "r"},
        {"role": "tool", "tool_call_id": "call_2", "content": "r"},
    ]


def test_items_of_several_answers_are_several_messages():
    one, two = ({"role": "assistant", "content": text} for text in "ab")
    assert messages(said("a"), said("b")) == [one, two]
    assert messages(said("a"), thought("t"), said("b")) == [one, {**two, "reasoning_content": "t"}]
    assert messages(said("a"), USER, said("b")) == [one, USER, two]
    assert messages(call(1), result(1), call(2), result(2)) == [
        {"role": "assistant", "tool_calls": [wire_call(1)]},
        {"role": "tool", "tool_call_id": "call_1", "content": "r"},
        {"role": "assistant", "tool_calls": [wire_call(2)]},
        {"role": "tool", "tool_call_id": "call_2", "content": "r"},
    ]


def test_the_result_of_an_unknown_call_is_refused():
    with pytest.raises(RequestError, match="no function_call with the call_id 'call_2'") as refused:
        messages(call(1), result(2))
    assert refused.value.field == "input"
    assert len(chat([USER, call(1)], input=[result(1)]).messages) == 3, "the call may be in an earlier response"


def test_the_conversation_before_the_input_is_limited_with_it():
    half = {"role": "user", "content": "a" * (MIN_CHARACTERS // 2 + 1)}
    body = ResponseRequest.model_validate({"input": [half]}, context=Lengths(16))
    chat_request(body, [], Lengths(16))
    with pytest.raises(RequestError, match=r"input: .* characters exceed the limit") as refused:
        chat_request(body, body.items, Lengths(16))
    assert refused.value.field == "input"


def test_fields_of_the_same_meaning():
    values: dict[str, Any] = {
        "model": "m", "temperature": 0.5, "top_p": 0.9, "stream": True, "parallel_tool_calls": False, "top_k": 3,
        "min_p": 0.1, "seed": 1, "ignore_eos": True, "priority": 1, "cache_salt": "s",
        "chat_template_kwargs": {"a": 1}, "user": "u", "stop": ["a"], "stop_token_ids": [3], "bad_words": ["b"],
        "presence_penalty": 0.1, "frequency_penalty": 0.2, "repetition_penalty": 1.1, "logit_bias": {"4": 1.0},
        "min_tokens": 2, "skip_special_tokens": False, "include_stop_str_in_output": True,
        "structured_outputs": {"regex": "a"}, "allowed_token_ids": [1, 2],
        "thinking_token_budget": 3,
    }  # fmt: skip
    assert values.keys() > SamplingFields.model_fields.keys()
    request = chat(**values, max_output_tokens=7, include=[LOGPROBS], top_logprobs=2)
    values["allowed_token_ids"] = array("I", values["allowed_token_ids"])
    assert {name: getattr(request, name) for name in values} == values
    assert (request.max_completion_tokens, request.logprobs, request.top_logprobs) == (7, True, 2)
    low = {"reasoning_effort": "low", "enable_thinking": True}
    assert chat(reasoning={"effort": "low"}).template_options == low
    none = {"reasoning_effort": "none", "enable_thinking": False}
    assert chat(reasoning={"effort": "none"}).template_options == none
    assert chat(reasoning={"effort": "max"}).template_options == {**low, "reasoning_effort": "max"}
    explicit = {"enable_thinking": True, "reasoning_effort": "high"}
    assert chat(reasoning={"effort": "none"}, chat_template_kwargs=explicit).template_options == explicit
    assert chat(reasoning={"effort": None, "summary": None}).template_options == {}
    plain = chat()
    assert plain.model_fields_set == {"messages"}, "defaults are those of the chat API"


def test_functions_and_their_choice():
    tool = {"type": "function", "name": "f", "description": None, "parameters": {"type": "object"}, "strict": True}
    request = chat(tools=[tool])
    assert [entry.model_dump(exclude_unset=True) for entry in request.tools] == [
        {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}, "strict": True}}
    ]
    for choice in ("none", "auto", "required"):
        assert chat(tools=[tool], tool_choice=choice).tool_choice == choice
    named = chat(tools=[tool], tool_choice={"type": "function", "name": "f"}).tool_choice
    assert named is not None
    assert named.model_dump() == {"type": "function", "function": {"name": "f"}}  # type: ignore[union-attr]
    assert chat(tool_choice="auto").tool_choice is None, "without tools there is no choice"
    with pytest.raises(RequestError, match="tool_choice: needs tools"):
        chat(tool_choice="required")
    with pytest.raises(RequestError, match="tools: the function 'f' is given twice"):
        chat(tools=[tool, tool])


def test_formats_of_the_text():
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    form = {"type": "json_schema", "name": "n", "schema": schema, "strict": True, "description": None}
    assert chat(text={"format": form}).response_format == {
        "type": "json_schema",
        "json_schema": {"name": "n", "schema": schema, "strict": True},
    }
    assert chat(text={"format": {"type": "json_object"}}).response_format == {"type": "json_object"}
    assert chat(text={"format": {"type": "text"}}).grammar is None


def test_errors_name_the_field_of_the_responses_api():
    for message, field, expected in [
        ("messages.0.content: too long", "messages", ("input.0.content: too long", "input")),
        ("response_format: no schema", "response_format", ("text: no schema", "text")),
        ("the prompt is empty", "prompt", ("the prompt is empty", "input")),
        ("tools: no format", "tools", ("tools: no format", "tools")),
        ("unknown", None, ("unknown", None)),
    ]:
        with pytest.raises(RequestError) as refused, response_fields():
            raise RequestError(message, field)
        assert (str(refused.value), refused.value.field) == expected
    other = QueueFullError("messages: full")
    assert in_response_fields(other) is other


def test_texts_of_one_message_are_joined_once():
    class Text(str):
        """A text that is not copied for each further text."""

        def __radd__(self, before: str) -> str:
            raise AssertionError("joined one by one")

    call = FunctionCallItem(type="function_call", call_id="c", name="f", arguments="{}")
    texts = [MessageItem.model_construct(role="assistant", content=Text(text)) for text in ("a", "b", "c")]
    chat = chat_request(ResponseRequest(input="go on"), [call, *texts])
    assert [message.text for message in chat.messages] == ["abc", "go on"]
