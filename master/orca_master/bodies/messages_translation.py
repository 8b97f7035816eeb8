"""Translation of a body of /v1/messages to the chat request with the same meaning.

A user's message with results of tools becomes messages of the role `tool`, and of the user's texts between them.
Consecutive messages of one role become one, as in Anthropic's API: many chat templates refuse them.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from orca_master.bodies.messages_blocks import (
    AnyMessage,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    text_of,
)
from orca_master.bodies.messages_requests import CountTokensRequest, MessagesRequest, Tool, ToolChoice
from orca_master.bodies.openai_requests import ChatCompletionRequest
from orca_master.bodies.validation import described

SEPARATOR = "\n"
"""Between blocks of the user's or the system's text; blocks of an answer follow each other directly."""


def chat_request(body: CountTokensRequest) -> ChatCompletionRequest:
    """Return the chat request; raise RequestError for what only the translation shows, such as too many messages."""
    fields: dict[str, Any] = {"model": body.model, "messages": chat_messages(body)}
    if body.messages[-1].role == "assistant":
        fields["continue_final_message"] = True
    if body.tools:
        fields["tools"] = [_function(tool) for tool in body.tools]
    if body.tool_choice is not None:
        fields |= _tool_choice(body.tool_choice)
    # Of the chat template, which ignores those that it does not know. The effort alone turns reasoning neither on nor
    # off, as in Anthropic's API, where only `thinking` does: without it a client does not see the reasoning.
    variables: dict[str, Any] = {}
    if body.thinking is not None and body.thinking.type != "adaptive":
        variables["enable_thinking"] = body.thinking.type != "disabled"  # Qwen3's
    if body.output_config is not None and (effort := body.output_config.effort) is not None:
        variables["reasoning_effort"] = effort
    if variables:
        fields["chat_template_kwargs"] = variables
    if isinstance(body, MessagesRequest):
        if body.thinking is not None and body.thinking.budget is not None:
            fields["thinking_token_budget"] = body.thinking.budget
        fields |= {
            "max_tokens": body.max_tokens,
            "temperature": body.temperature,
            "top_p": body.top_p,
            "top_k": body.top_k,
            "stop": body.stop_sequences,
            "stream": body.stream,
        }
    try:
        return ChatCompletionRequest.model_validate(fields)
    except ValidationError as error:
        raise described(error.errors(include_url=False, include_context=False, include_input=False)) from None


def chat_messages(body: CountTokensRequest) -> list[dict[str, Any]]:
    """Return the system's text and all messages as those of a chat."""
    parts = [_Part("system", text_of(body.system, SEPARATOR))] if body.system else []
    for message in body.messages:
        parts.extend(_parts(message))
    # Each result of a tool is a message of its own.
    of_one_role = itertools.groupby(
        enumerate(parts), lambda entry: (entry[1].role, entry[0] if entry[1].role == "tool" else None)
    )
    return [_joined([part for _, part in group]) for _, group in of_one_role]


@dataclass(frozen=True, slots=True)
class _Part:
    """One block as a part of a chat message; `result_of`: the id of a call, for the role `tool`."""

    role: str
    text: str = ""
    reasoning: str = ""
    call: dict[str, Any] | None = None
    result_of: str | None = None


def _parts(message: AnyMessage) -> list[_Part]:
    """Return the parts of one message, at least one."""
    if isinstance(message.content, str):
        return [_Part(message.role, message.content)]
    parts = [] if message.content else [_Part(message.role)]
    for block in message.content:
        match block:
            case TextBlock():
                part = _Part(message.role, block.text)
            case ThinkingBlock():
                part = _Part(message.role, reasoning=block.thinking)
            case ToolUseBlock():
                call = {"id": block.id, "function": {"name": block.name, "arguments": block.arguments}}
                part = _Part(message.role, call=call)
            case ToolResultBlock():
                text = text_of(block.content, SEPARATOR)
                # A chat has no field for the failure of a tool.
                part = _Part("tool", f"Error: {text}" if block.is_error else text, result_of=block.tool_use_id)
        parts.append(part)
    return parts


def _joined(parts: list[_Part]) -> dict[str, Any]:
    """Return consecutive parts of one role as one message."""
    first = parts[0]
    separator = "" if first.role == "assistant" else SEPARATOR
    message: dict[str, Any] = {"role": first.role, "content": separator.join(part.text for part in parts)}
    if reasoning := "".join(part.reasoning for part in parts):
        message["reasoning_content"] = reasoning
    if calls := [part.call for part in parts if part.call is not None]:
        message["tool_calls"] = calls
    if first.result_of is not None:
        message["tool_call_id"] = first.result_of
    return message


def _function(tool: Tool) -> dict[str, Any]:
    function: dict[str, Any] = {"name": tool.name, "parameters": tool.input_schema}
    if tool.description is not None:
        function["description"] = tool.description
    if tool.strict:
        function["strict"] = True
    return {"type": "function", "function": function}


def _tool_choice(choice: ToolChoice) -> dict[str, Any]:
    named = {"type": "function", "function": {"name": choice.name}}
    kinds: dict[str, Any] = {"auto": "auto", "none": "none", "any": "required", "tool": named}
    return {"tool_choice": kinds[choice.type], "parallel_tool_calls": not choice.disable_parallel_tool_use}
