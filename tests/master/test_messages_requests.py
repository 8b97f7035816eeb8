"""Bodies of /v1/messages: what they mean as chat requests, and what is refused by the field's name."""

from __future__ import annotations

import json
from typing import Any

import pytest
from orca_master.bodies.lengths import MAX_DEPTH, MAX_ENTRIES, Lengths
from orca_master.bodies.messages_translation import chat_request
from orca_master.bodies.validation import check_body, pack, unpack
from orca_master.errors import RequestError

HI: dict[str, Any] = {"role": "user", "content": "Hi"}
TOOL: dict[str, Any] = {"name": "add", "input_schema": {"type": "object"}}
CALL: dict[str, Any] = {"type": "tool_use", "id": "call_1", "name": "add", "input": {"x": [1, "é"]}}
IMAGE = {"type": "image", "source": {"type": "url", "url": "http://localhost/"}}


def text(content: str) -> dict[str, Any]:
    return {"type": "text", "text": content}


def user(*blocks: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(blocks)}


def assistant(*blocks: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": list(blocks)}


def result(content: Any, **fields: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": "call_1", "content": content} | fields


def nested(depth: int) -> Any:
    return json.loads('{"a": ' * depth + "1" + "}" * depth)


def translated(kind: str = "messages", **fields: Any) -> dict[str, Any]:
    """Return the fields of the chat request of a body, sent through the process of large bodies."""
    body = {"model": "m", "messages": [HI]} | ({"max_tokens": 5} if kind == "messages" else {}) | fields
    value = check_body(kind, json.dumps(body).encode(), Lengths(1024))
    unpacked = unpack(kind, *pack(value))
    assert unpacked == value
    return chat_request(unpacked).model_dump(exclude_unset=True)


@pytest.mark.parametrize(
    ("fields", "messages"),
    [
        ({}, [HI]),
        ({"system": "Be brief."}, [{"role": "system", "content": "Be brief."}, HI]),
        (
            {"system": [text("a") | {"cache_control": {"type": "ephemeral", "ttl": "1h"}}, text("b")]},
            [{"role": "system", "content": "a\nb"}, HI],
        ),
        ({"system": ""}, [HI]),
        ({"system": []}, [HI]),
        ({"messages": [user(text("a"), text("b"))]}, [{"role": "user", "content": "a\nb"}]),
        ({"messages": [HI, user(), HI]}, [{"role": "user", "content": "Hi\n\nHi"}]),
        (
            {"messages": [HI, assistant(text("a"), text("b")), assistant(text("c")), HI]},
            [HI, {"role": "assistant", "content": "abc"}, HI],
        ),
        (
            {"messages": [HI, {"role": "system", "content": "s"}, HI]},
            [HI, {"role": "system", "content": "s"}, HI],
        ),
        (
            {"messages": [HI, assistant({"type": "thinking", "thinking": "Hm.", "signature": ""}, text("a")), HI]},
            [HI, {"role": "assistant", "content": "a", "reasoning_content": "Hm."}, HI],
        ),
    ],
)  # fmt: skip
def test_messages(fields, messages):
    assert translated(**fields)["messages"] == messages


def test_calls_and_results():
    second = CALL | {"id": "call_2", "input": {}}
    messages = translated(
        messages=[
            HI,
            assistant(text("Yes."), CALL, second),
            user(result("2"), result([text("a"), text("b")], tool_use_id="call_2", is_error=True), text("And now?")),
        ]
    )["messages"]
    calls = [
        {"id": "call_1", "function": {"name": "add", "arguments": '{"x": [1, "\\u00e9"]}'}},
        {"id": "call_2", "function": {"name": "add", "arguments": "{}"}},
    ]
    assert messages == [
        HI,
        {"role": "assistant", "content": "Yes.", "tool_calls": calls},
        {"role": "tool", "tool_call_id": "call_1", "content": "2"},
        {"role": "tool", "tool_call_id": "call_2", "content": "Error: a\nb"},
        {"role": "user", "content": "And now?"},
    ]
    absent = {"type": "tool_result", "tool_use_id": ""}
    assert [message["content"] for message in translated(messages=[user(absent, absent)])["messages"]] == ["", ""]


@pytest.mark.parametrize(
    ("choice", "expected", "parallel"),
    [
        ({"type": "auto"}, "auto", True),
        ({"type": "auto", "disable_parallel_tool_use": True}, "auto", False),
        ({"type": "none"}, "none", True),
        ({"type": "any"}, "required", True),
        ({"type": "tool", "name": "add"}, {"type": "function", "function": {"name": "add"}}, True),
    ],
)
def test_tools_and_their_choice(choice, expected, parallel):
    strict = {"name": "now", "input_schema": {}, "strict": True}
    tools = [TOOL | {"type": "custom", "cache_control": {"type": "ephemeral"}, "description": "Add."}, strict]
    chat = translated(tools=tools, tool_choice=choice)
    add = {"name": "add", "parameters": {"type": "object"}, "description": "Add."}
    now = {"name": "now", "parameters": {}, "strict": True}
    assert chat["tools"] == [{"type": "function", "function": function} for function in (add, now)]
    assert (chat["tool_choice"], chat["parallel_tool_calls"]) == (expected, parallel)


def test_options():
    chat = translated(
        max_tokens=7, temperature=0.5, top_p=0.25, top_k=3, stop_sequences=["a", "b"], stream=True,
        metadata={"user_id": "me"}, service_tier="auto", cache_control={"type": "ephemeral"}, container=None,
    )  # fmt: skip
    options = {"max_tokens": 7, "temperature": 0.5, "top_p": 0.25, "top_k": 3, "stop": ["a", "b"], "stream": True}
    assert {name: chat[name] for name in options} == options
    assert set(chat) == {"model", "messages", *options}
    assert set(translated("count_tokens")) == {"model", "messages"}


@pytest.mark.parametrize(
    ("kind", "variables"),
    [("enabled", {"enable_thinking": True}), ("disabled", {"enable_thinking": False}), ("adaptive", None)],
)
def test_thinking_sets_the_variable_of_the_template(kind, variables):
    chat = translated(thinking={"type": kind, "budget_tokens": 1024}, max_tokens=1025)
    assert chat.get("chat_template_kwargs") == variables


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"messages": [user(IMAGE)]}, "messages.0.content.0: only text and tool_result blocks are supported in a user"),
        ({"messages": [user(CALL)]}, "messages.0.content.0: only text and tool_result blocks are supported in a user"),
        ({"messages": [user(result([IMAGE]))]}, "messages.0.content.0.content.0: only text blocks are supported here"),
        ({"messages": [assistant(result("a")), HI]}, "messages.0.content.0: only text, tool_use and thinking blocks"),
        ({"messages": [HI, assistant(text("a"), CALL)]}, "messages: a last message of the assistant must consist of"),
        ({"messages": [HI, assistant(text(""))]}, "messages: a last message of the assistant must consist of text"),
        ({"messages": [HI, {"role": "assistant", "content": ""}]}, "messages: a last message of the assistant must"),
        ({"messages": [{"role": "tool", "content": ""}]}, "messages.0: the role must be user, assistant or system"),
        ({"messages": [{"role": "user"}]}, "messages.0.content: Field required"),
        ({"messages": []}, "messages: List should have at least 1 item"),
        ({"messages": [user(text("a") | {"citations": [1]})]}, "messages.0.content.0.citations: this field is unknown"),
        (
            {"messages": [user(*[text("")] * 1000)] * (MAX_ENTRIES // 1000 + 1)},
            "messages: 17000 blocks in all messages",
        ),
        ({"messages": [user(text("x" * 300_000))]}, "messages: 300000 characters exceed the limit"),
        ({"system": "x" * 300_000}, "system: 300000 characters exceed the limit"),
        ({"system": [IMAGE]}, "system.0: only text blocks are supported here"),
        ({"messages": [assistant(CALL | {"input": [1]}), HI]}, "messages.0.content.0.input: Input should be a valid"),
        (
            {"messages": [assistant(CALL | {"input": nested(MAX_DEPTH + 1)}), HI]},
            "messages.0.content.0.input: nested more than 128 levels deep",
        ),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools.0.type: only tools of the type custom are"),
        ({"tools": [{"name": "add"}]}, "tools.0.input_schema: Field required"),
        ({"tools": [TOOL, TOOL]}, "tools: the function 'add' is given twice"),
        ({"tool_choice": {"type": "any"}}, "tool_choice: needs tools"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "no"}}, "tool_choice: tools has no function 'no'"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool"}}, "tool_choice: name is needed with the type tool"),
        ({"tools": [TOOL], "tool_choice": {"type": "any", "name": "add"}}, "tool_choice: name is needed with the type"),
        ({"max_tokens": None}, "max_tokens: "),
        ({"max_tokens": 0}, "max_tokens: "),
        ({"model": None}, "model: "),
        ({"stop_sequences": ["a", ""]}, "stop_sequences: a stop sequence must not be empty"),
        ({"thinking": {"type": "on"}}, "thinking.type: "),
        ({"container": "c"}, "container: this field is unknown or not supported"),
        (
            {"thinking": {"type": "enabled", "budget_tokens": 1023}, "max_tokens": 2000},
            "thinking: budget_tokens must be at least 1024",
        ),
        (
            {"thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 1024},
            "thinking: budget_tokens, 1024, must be less than max_tokens, 1024: increase max_tokens, or send the type "
            "adaptive",
        ),
        (
            {"thinking": {"type": "enabled", "budget_tokens": 5000}, "max_tokens": 2000},
            "thinking: budget_tokens, 5000, must be less than max_tokens, 2000: increase max_tokens, or reduce "
            "budget_tokens to 1999 at most",
        ),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024.5}}, "thinking.budget_tokens: "),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else "",
)
def test_what_is_refused(fields, message):
    with pytest.raises(RequestError) as caught:
        translated(**fields)
    assert str(caught.value).startswith(message)
    assert caught.value.field == message.partition(":")[0].partition(".")[0]


def test_an_answer_that_is_begun_is_continued():
    chat = translated(messages=[HI, assistant(text("One, "), text("two"))])
    assert chat["messages"] == [HI, {"role": "assistant", "content": "One, two"}]
    assert chat["continue_final_message"]


def test_the_deepest_input_can_be_sent_to_a_template():
    body = {"model": "m", "max_tokens": 1, "messages": [assistant(CALL | {"input": nested(MAX_DEPTH)}), HI]}
    (call,) = chat_request(check_body("messages", json.dumps(body).encode(), Lengths(1024))).messages[0].tool_calls
    assert call.function.values == nested(MAX_DEPTH)


def test_what_claude_code_sends_is_accepted():
    """Fields for the management of contexts and caches have no effect; the effort is that of a chat."""
    fields = {
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "system": [text("a") | {"cache_control": {"type": "ephemeral", "scope": "global"}}],
    }
    assert translated(**fields)["messages"][0] == {"role": "system", "content": "a"}
    for effort in ("low", "xhigh", "max"):
        variables = translated(output_config={"effort": effort}, **fields)["chat_template_kwargs"]
        assert variables == {"reasoning_effort": effort}, "only thinking turns reasoning on or off"
    assert "chat_template_kwargs" not in translated(output_config={}, **fields)
    off = translated(output_config={"effort": "low"}, thinking={"type": "disabled"}, **fields)
    assert off["chat_template_kwargs"] == {"reasoning_effort": "low", "enable_thinking": False}
    with pytest.raises(RequestError, match=r"output_config.format: this field is unknown or not supported"):
        translated(output_config={"format": {"type": "json_schema"}})
