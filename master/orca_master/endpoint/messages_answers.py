"""Wire types of the responses and errors of /v1/messages.

Source: Anthropic API reference, "Messages", "Count tokens in a message" and "Errors".
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel

StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use", "model_context_window_exceeded"]


class Text(BaseModel):
    """A block of text."""

    type: Literal["text"] = "text"
    text: str


class Thinking(BaseModel):
    """A block of reasoning. The signature is empty: nothing is verified."""

    type: Literal["thinking"] = "thinking"
    thinking: str
    signature: str = ""


class ToolUse(BaseModel):
    """A call of a tool."""

    type: Literal["tool_use"] = "tool_use"
    id: str
    name: str
    input: dict[str, Any]


class MessageUsage(BaseModel):
    """Token counts; `input_tokens` is without those that the prefix cache had."""

    input_tokens: int
    output_tokens: int
    cache_read_input_tokens: int
    cache_creation_input_tokens: int = 0


class Message(BaseModel):
    """Response of /v1/messages; in a stream `message_start` has it without content."""

    id: str
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    model: str
    content: list[Text | Thinking | ToolUse]
    stop_reason: StopReason | None = None
    stop_sequence: str | None = None
    usage: MessageUsage


class InputTokens(BaseModel):
    """Response of /v1/messages/count_tokens."""

    input_tokens: int


class MessagesError(BaseModel):
    """The object `error`."""

    type: str
    message: str
    details: dict[str, Any] | None = None


class MessagesErrorBody(BaseModel):
    """Body of every response that is not 2xx, and data of the event `error`."""

    type: Literal["error"] = "error"
    error: MessagesError
