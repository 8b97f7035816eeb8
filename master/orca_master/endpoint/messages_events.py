"""`MessageEvents`: the events of one answer of /v1/messages, of which `message_of` makes the whole message.

Source: Anthropic API reference, "Streaming Messages". Blocks follow each other in the order in which the model writes
them. A tool call becomes a block when its arguments are complete, so that clients get valid JSON; a call whose
arguments are no JSON object, such as a call that max_tokens cuts off, is left out.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

from orca_master.bodies.tools import object_of
from orca_master.endpoint.answer_parts import AnswerParser
from orca_master.endpoint.choice_run import Piece
from orca_master.endpoint.messages_answers import Message, MessageUsage, StopReason, Text, Thinking, ToolUse
from orca_master.text.tool_calls import CallDelta

Event = dict[str, Any]
"""One event as JSON; `type` is its name."""
_EMPTY: dict[str, Text | Thinking] = {"text": Text(text=""), "thinking": Thinking(thinking="")}
_TEXT_OF = {"text_delta": "text", "thinking_delta": "thinking", "input_json_delta": "partial_json"}


class MessageEvents:
    """State of one answer.

    `call_id` returns the id of a call by its number. `shows_thinking`: False to leave reasoning out. `fills_context`:
    True if the model's context, not the client's `max_tokens`, limits the answer.
    """

    def __init__(
        self,
        message_id: str,
        model_name: str,
        prompt_tokens: int,
        parser: AnswerParser,
        call_id: Callable[[int], str],
        shows_thinking: bool,
        fills_context: bool,
    ) -> None:
        self._message_id = message_id
        self._model_name = model_name
        self._prompt_tokens = prompt_tokens
        self._parser = parser
        self._call_id = call_id
        self._shows_thinking = shows_thinking
        self._fills_context = fills_context
        self._num_blocks = 0
        self._open = ""
        """Type of the block that is not closed, "" if there is none."""
        self._call: CallDelta | None = None
        """The call that may not be complete, with its arguments so far in `_arguments`."""
        self._arguments: list[str] = []
        self._has_calls = False
        self._num_cached = self._generated = 0

    def start(self, pieces: Iterable[Piece]) -> Event:
        """Return the first event, `message_start`; `pieces` are the first ones, which say what the prefix cache had."""
        usage = self._usage(sum(piece.num_cached for piece in pieces))
        return {"type": "message_start", "message": self._message(usage).model_dump()}

    def of(self, piece: Piece) -> list[Event]:
        """Return the events of the next piece; those of the last piece end the message."""
        self._generated += 1
        self._num_cached += piece.num_cached
        is_last = piece.finish_reason is not None
        parts = self._parser.feed(piece.text, is_last)
        events: list[Event] = []
        if parts.reasoning and self._shows_thinking:
            events += self._append("thinking", parts.reasoning)
        self._arguments += [delta.arguments for delta in parts.continued_call]
        if parts.content:
            events += self._append("text", parts.content)
        for delta in parts.new_calls:
            if delta.name is not None:
                events += self._close()
                self._call = delta
            self._arguments.append(delta.arguments)
        return events + self._end(piece) if is_last else events

    def _append(self, kind: str, text: str) -> list[Event]:
        """Return the events of more text or reasoning."""
        events = []
        if self._open != kind:
            events = [*self._close(), self._begin(_EMPTY[kind])]
            self._open = kind
        return [*events, self._delta({"type": f"{kind}_delta", kind: text})]

    def _close(self) -> list[Event]:
        """Return the events that end the open block, and those of a call that is complete now."""
        if self._call is not None:
            return self._use_tool()
        if not self._open:
            return []
        self._open = ""
        return [self._stop()]

    def _use_tool(self) -> list[Event]:
        call, arguments = self._call, "".join(self._arguments)
        self._call, self._arguments = None, []
        if call is None or input_of(arguments) is None:
            return []
        self._has_calls = True
        block = ToolUse(id=self._call_id(call.index), name=call.name or "", input={})
        return [
            self._begin(block),
            self._delta({"type": "input_json_delta", "partial_json": arguments}),
            self._stop(),
        ]

    def _end(self, piece: Piece) -> list[Event]:
        events = self._close()
        delta = {"stop_reason": self._stop_reason(piece), "stop_sequence": piece.stop_string}
        usage = self._usage(self._num_cached).model_dump()
        return [*events, {"type": "message_delta", "delta": delta, "usage": usage}, {"type": "message_stop"}]

    def _stop_reason(self, piece: Piece) -> StopReason:
        if piece.finish_reason == "length":
            return "model_context_window_exceeded" if self._fills_context else "max_tokens"
        if piece.stop_string is not None:
            return "stop_sequence"
        return "tool_use" if self._has_calls else "end_turn"

    def _begin(self, block: Text | Thinking | ToolUse) -> Event:
        self._num_blocks += 1
        return {"type": "content_block_start", "index": self._num_blocks - 1, "content_block": block.model_dump()}

    def _delta(self, delta: dict[str, Any]) -> Event:
        return {"type": "content_block_delta", "index": self._num_blocks - 1, "delta": delta}

    def _stop(self) -> Event:
        return {"type": "content_block_stop", "index": self._num_blocks - 1}

    def _message(self, usage: MessageUsage) -> Message:
        return Message(id=self._message_id, model=self._model_name, content=[], usage=usage)

    def _usage(self, num_cached: int) -> MessageUsage:
        return MessageUsage(
            input_tokens=self._prompt_tokens - num_cached,
            output_tokens=self._generated,
            cache_read_input_tokens=num_cached,
        )


def message_of(events: Iterable[Event]) -> dict[str, Any]:
    """Return the message that all events of an answer make up, as JSON."""
    message: dict[str, Any] = {}
    texts: list[list[str]] = []
    for event in events:
        match event["type"]:
            case "message_start":
                message = dict(event["message"])
            case "content_block_start":
                message["content"].append(dict(event["content_block"]))
                texts.append([])
            case "content_block_delta":
                delta = event["delta"]
                texts[event["index"]].append(delta[_TEXT_OF[delta["type"]]])
            case "message_delta":
                message |= event["delta"] | {"usage": event["usage"]}
    for block, parts in zip(message["content"], texts, strict=True):
        text = "".join(parts)
        if block["type"] == "tool_use":
            block["input"] = input_of(text)
        else:
            block[block["type"]] = text
    return message


def input_of(arguments: str) -> dict[str, Any] | None:
    """Return the arguments of a call as an object; None if they are no JSON object, or cannot be written as one.

    NaN, Infinity and numbers as large as 1e999 are no JSON; official clients cannot read lone surrogates.
    """
    value = object_of(arguments) if arguments else None
    try:
        json.dumps(value, allow_nan=False, ensure_ascii=False).encode()
    except ValueError:
        return None
    return value
