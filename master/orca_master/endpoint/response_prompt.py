"""From a request of the Responses API to the request of the chat API that generates its answer. Pure functions.

Reasoning, text and calls that follow each other are one message of the assistant, as the model wrote them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from pydantic import ValidationError

from orca_master.bodies.lengths import Lengths
from orca_master.bodies.openai_requests import ChatCompletionRequest
from orca_master.bodies.response_items import (
    FunctionCallItem,
    FunctionCallOutputItem,
    InputItem,
    MessageItem,
    ReasoningItem,
    text_of,
)
from orca_master.bodies.response_requests import FunctionToolChoice, ResponseRequest
from orca_master.bodies.sampling_fields import SamplingFields
from orca_master.bodies.truncation import WHAT_FITS
from orca_master.bodies.validation import described
from orca_master.errors import RequestError

FIELDS = {
    "messages": "input",
    "prompt": "input",
    "max_tokens": "max_output_tokens",
    "max_completion_tokens": "max_output_tokens",
    "response_format": "text",
}
"""Fields of the chat API → fields of the Responses API, in errors."""
SAME_FIELDS = ("model", "stream", "parallel_tool_calls", "chat_template_kwargs", "user", *SamplingFields.model_fields)


@contextlib.contextmanager
def response_fields() -> Iterator[None]:
    """Let errors about a chat request name the field of the Responses API."""
    try:
        yield
    except RequestError as error:
        raise in_response_fields(error) from error


def in_response_fields(error: Exception) -> Exception:
    """Return an error about a chat request with the field of the Responses API; others are returned unchanged."""
    if not isinstance(error, RequestError):
        return error
    start, colon, rest = str(error).partition(":")
    name, dot, place = start.partition(".")
    message = f"{FIELDS[name]}{dot}{place}{colon}{rest}" if colon and name in FIELDS else str(error)
    return RequestError(message, FIELDS.get(error.field or "", error.field), error.code)


def chat_request(
    body: ResponseRequest, earlier: Sequence[InputItem] = (), lengths: Lengths | None = None
) -> ChatCompletionRequest:
    """Return the chat request of `body`; `earlier`: the items of the conversation before its input.

    Raises RequestError, with the fields of the Responses API, for what the chat API refuses.
    """
    fields = {name: getattr(body, name) for name in SAME_FIELDS if name in body.model_fields_set}
    fields["messages"] = _messages(body.instructions, [*earlier, *body.items])
    if body.max_output_tokens is not None:
        fields["max_completion_tokens"] = body.max_output_tokens
    if body.truncation == "auto":
        fields["truncate_prompt_tokens"] = WHAT_FITS  # as in vLLM; OpenAI drops whole items
    if body.reasoning.effort is not None:
        fields["reasoning_effort"] = body.reasoning.effort
    if body.wants_logprobs:
        fields |= {"logprobs": True, "top_logprobs": body.top_logprobs}
    if body.tools:
        fields["tools"] = [_tool(tool.model_dump(exclude_unset=True, exclude_none=True)) for tool in body.tools]
    if body.tools or body.tool_choice != "auto":
        fields["tool_choice"] = _tool_choice(body)
    if body.text.format is not None:
        form = {name: value for name, value in body.text.format.items() if value is not None}
        kind = form.pop("type")
        fields["response_format"] = {"type": kind, **({"json_schema": form} if kind == "json_schema" else {})}
    with response_fields():
        try:
            return ChatCompletionRequest.model_validate(fields, context=lengths)
        except ValidationError as error:
            errors = error.errors(include_url=False, include_context=False, include_input=False)
            raise described(errors) from None


def _tool(tool: dict[str, Any]) -> dict[str, Any]:
    return {"type": tool.pop("type"), "function": tool}


def _tool_choice(body: ResponseRequest) -> Any:
    choice = body.tool_choice
    return {"type": "function", "function": {"name": choice.name}} if isinstance(choice, FunctionToolChoice) else choice


def _messages(instructions: str | None, items: Sequence[InputItem]) -> list[dict[str, Any]]:
    """Return the messages of a conversation; raise RequestError for the result of a call that is not in it.

    A call whose arguments are no JSON object, such as one that max_output_tokens cut off, is left out unless it has a
    result: not every chat template can write one.
    """
    answered = {item.call_id for item in items if isinstance(item, FunctionCallOutputItem)}
    messages: list[dict[str, Any]] = []
    if instructions is not None:
        messages.append({"role": "system", "content": instructions})
    called: set[str] = set()
    turn: dict[str, Any] | None = None
    """The assistant's message to which the next item may belong."""
    for item in items:
        if isinstance(item, FunctionCallItem) and isinstance(item.values, str) and item.call_id not in answered:
            continue
        if not _is_assistants(item):
            turn = None
        elif turn is None or _begins_a_turn(item, turn):
            turn = {"role": "assistant"}
            messages.append(turn)
        match item:
            case MessageItem(role="assistant") if turn is not None:
                _append(turn, "content", text_of(item.content))
            case ReasoningItem() if turn is not None:
                _append(turn, "reasoning_content", item.text)
            case FunctionCallItem() if turn is not None:
                called.add(item.call_id)
                call = {"name": item.name, "arguments": item.arguments}
                turn.setdefault("tool_calls", []).append({"id": item.call_id, "type": "function", "function": call})
            case FunctionCallOutputItem():
                if item.call_id not in called:
                    raise RequestError(
                        f"input: the conversation has no function_call with the call_id {item.call_id[:80]!a}", "input"
                    )
                messages.append({"role": "tool", "tool_call_id": item.call_id, "content": text_of(item.output)})
            case MessageItem():
                messages.append({"role": item.role, "content": text_of(item.content)})
    return [_joined(message) for message in messages]


def _append(turn: dict[str, Any], field: str, text: str) -> None:
    """Add a text to those that `_joined` joins. To join each one would take the square of the time for many items."""
    turn.setdefault(field, []).append(text)


def _joined(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message with its texts as strings."""
    return {
        name: "".join(value) if isinstance(value, list) and name != "tool_calls" else value
        for name, value in message.items()
    }


def _is_assistants(item: InputItem) -> bool:
    return isinstance(item, FunctionCallItem | ReasoningItem) or (
        isinstance(item, MessageItem) and item.role == "assistant"
    )


def _begins_a_turn(item: InputItem, turn: dict[str, Any]) -> bool:
    """Return True if an item of the assistant is of another answer than `turn`."""
    if isinstance(item, ReasoningItem):
        return "content" in turn or "tool_calls" in turn
    return isinstance(item, MessageItem) and "content" in turn and "tool_calls" not in turn
