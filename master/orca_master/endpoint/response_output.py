"""`ResponseOutput`: the output items of one response and the events of its stream, from the pieces of its answer. Pure.

Consecutive reasoning is one item, consecutive text is one message, and each call of a function is one item. The item
that grows is the last one; the events about it come in OpenAI's documented order.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from orca_master.endpoint.answer_parts import Parts
from orca_master.endpoint.openai_answers import ChatTokenLogprob
from orca_master.endpoint.response_objects import (
    EncodedLogprobs,
    OutputCall,
    OutputItem,
    OutputMessage,
    OutputReasoning,
    OutputText,
    ReasoningText,
    Status,
)
from orca_master.text.detokenizer import REPLACEMENT
from orca_master.text.tool_calls import CallDelta

Event = dict[str, Any]
"""An event without its sequence_number."""


class ResponseOutput:
    """State of one response.

    `response_id`: the items' ids are derived from it; `call_id`: the id of the n-th call; `is_plain`: all tokens belong
    to texts, none to calls or reasoning.
    """

    def __init__(self, response_id: str, call_id: Callable[[int], str], is_plain: bool = False) -> None:
        self.items: list[OutputItem] = []
        self._suffix = response_id.rpartition("_")[2]
        self._call_id = call_id
        self._is_plain = is_plain
        self._is_open = False
        """True while the last item can grow."""
        self._texts: list[str] = []
        """What the last item's text or arguments consist of, while it is open."""
        self._logprobs: list[ChatTokenLogprob] = []
        """Of tokens whose text has not come yet."""

    def feed(self, parts: Parts, logprobs: list[ChatTokenLogprob]) -> list[Event]:
        """Add what a piece of the answer consists of, and its tokens' log probabilities; return the events."""
        events: list[Event] = []
        self._logprobs += logprobs
        if parts.reasoning:
            self._add_reasoning(parts.reasoning, events)
        for delta in parts.continued_call:
            self._add_call(delta, events)
        if parts.content:
            self._add_text(parts.content, events)
        for delta in parts.new_calls:
            self._add_call(delta, events)
        if parts.reasoning or parts.calls:
            self._logprobs = []  # only texts have log probabilities
        return events

    def end(self, status: Status) -> list[Event]:
        """End the output; `status` is that of the last item. An answer without any token has an empty message."""
        events: list[Event] = []
        if not self.items:
            self._begin_message(events)
        self._close(events, status)
        return events

    def _add_reasoning(self, text: str, events: list[Event]) -> None:
        if not self._continues("reasoning"):
            self._close(events)
            item = OutputReasoning(
                type="reasoning", id=self._item_id("rs"), status="in_progress", summary=[], content=[]
            )
            self._begin(item, events)
            item["content"].append(ReasoningText(type="reasoning_text", text=""))
            events.append(self._event("content_part.added", content_index=0, part=dict(item["content"][0])))
        self._texts.append(text)
        events.append(self._event("reasoning_text.delta", content_index=0, delta=text))

    def _add_text(self, text: str, events: list[Event]) -> None:
        logprobs, self._logprobs = self._logprobs, []
        if not self._continues("message"):
            self._begin_message(events)
            logprobs = logprobs if self._is_plain else _of_text(logprobs, text)
        message = self.items[-1]
        assert message["type"] == "message"
        message["content"][0]["logprobs"].add(logprobs)
        self._texts.append(text)
        events.append(self._event("output_text.delta", content_index=0, delta=text, logprobs=logprobs))

    def _begin_message(self, events: list[Event]) -> None:
        self._close(events)
        item = OutputMessage(
            type="message", id=self._item_id("msg"), status="in_progress", role="assistant", content=[]
        )
        self._begin(item, events)
        item["content"].append(OutputText(type="output_text", text="", annotations=[], logprobs=EncodedLogprobs()))
        part = {**item["content"][0], "annotations": [], "logprobs": []}
        events.append(self._event("content_part.added", content_index=0, part=part))

    def _add_call(self, delta: CallDelta, events: list[Event]) -> None:
        if delta.name is not None:
            self._close(events)
            item = OutputCall(
                type="function_call",
                id=self._item_id("fc"),
                status="in_progress",
                call_id=self._call_id(delta.index),
                name=delta.name,
                arguments="",
            )
            self._begin(item, events)
        if delta.arguments:
            self._texts.append(delta.arguments)
            events.append(self._event("function_call_arguments.delta", delta=delta.arguments))

    def _continues(self, kind: str) -> bool:
        return self._is_open and self.items[-1]["type"] == kind

    def _begin(self, item: OutputItem, events: list[Event]) -> None:
        self.items.append(item)
        self._is_open = True
        event = {"type": "response.output_item.added", "output_index": len(self.items) - 1}
        # A copy of the item and of its content, which grows.
        events.append(event | {"item": {**item, **({"content": []} if "content" in item else {})}})

    def _close(self, events: list[Event], status: Status = "completed") -> None:
        """End the open item, if any."""
        if not self._is_open:
            return
        self._is_open = False
        text, self._texts = "".join(self._texts), []
        item = self.items[-1]
        item["status"] = status
        match item["type"]:
            case "message":
                item["content"][0]["text"] = text
                logprobs = item["content"][0]["logprobs"]
                events.append(self._event("output_text.done", content_index=0, text=text, logprobs=logprobs))
                events.append(self._event("content_part.done", content_index=0, part=item["content"][0]))
            case "reasoning":
                item["content"][0]["text"] = text
                events.append(self._event("reasoning_text.done", content_index=0, text=text))
                events.append(self._event("content_part.done", content_index=0, part=item["content"][0]))
            case "function_call":
                item["arguments"] = text
                events.append(self._event("function_call_arguments.done", name=item["name"], arguments=text))
        events.append({"type": "response.output_item.done", "output_index": len(self.items) - 1, "item": item})

    def _event(self, kind: str, **fields: Any) -> Event:
        """Return an event about the last item."""
        place = {"item_id": self.items[-1]["id"], "output_index": len(self.items) - 1}
        return {"type": f"response.{kind}", **place, **fields}

    def _item_id(self, prefix: str) -> str:
        return f"{prefix}_{self._suffix}{len(self.items):04x}"


def _of_text(logprobs: list[ChatTokenLogprob], text: str) -> list[ChatTokenLogprob]:
    """Return the log probabilities of the tokens of a text at the beginning of a message.

    Others precede them: the end of the reasoning or of a call, and white space, which the text lacks.
    """
    tokens = [entry["token"] for entry in logprobs]
    joined = "".join(tokens)
    starts = list(itertools.accumulate(map(len, tokens[:-1]), initial=0))
    for place in reversed(range(len(tokens))):
        if joined.startswith(text, starts[place]):
            return logprobs[place:]
    first = len(joined)  # the next character that is no white space, which a message may lack at its beginning
    for place in reversed(range(len(tokens))):
        if stripped := tokens[place].lstrip():
            first = starts[place] + len(tokens[place]) - len(stripped)
        if joined.startswith(text, first):
            return logprobs[place:]
    # The text of a part of a character is no part of the text.
    parts = itertools.takewhile(lambda token: REPLACEMENT in token, reversed(tokens))
    return logprobs[len(tokens) - sum(1 for _ in parts) :] or logprobs
