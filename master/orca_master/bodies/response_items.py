"""Items of the Responses API in a request: messages, calls of functions with their results, and reasoning.

Source: OpenAI API reference, "Responses", `input`. The output items of an answer are accepted again as input.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, Tag

from orca_master.bodies.body import Body, Name, tagged
from orca_master.bodies.lengths import at_most, check_texts, few_entries
from orca_master.bodies.tools import FunctionCall

MAX_ITEMS = 4096
MAX_PARTS = 1024
"""Maximum parts of one item."""
ItemStatus = Literal["in_progress", "completed", "incomplete"]
Extras = Annotated[list[Any], Field(max_length=MAX_PARTS), at_most(MAX_PARTS)]
"""Data of output items that is not read."""


class InputText(Body):
    """A text of the client."""

    type: Literal["input_text"]
    text: str


class OutputText(Body):
    """A text of an earlier answer."""

    type: Literal["output_text"]
    text: str
    annotations: Extras = []
    logprobs: Annotated[list[Any], Field(max_length=10**6)] = []


class ReasoningText(Body):
    """A text of an earlier answer's reasoning."""

    type: Literal["reasoning_text"]
    text: str


TextPart = Annotated[
    Annotated[InputText, Tag("[input_text]")] | Annotated[OutputText, Tag("[output_text]")],
    tagged(
        ("input_text", "output_text"),
        "type",
        "type: a part must be input_text or output_text, this server reads only text",
    ),
]
TextParts = Annotated[list[TextPart], Field(max_length=MAX_PARTS, fail_fast=True), at_most(MAX_PARTS)]


def text_of(content: str | list[InputText | OutputText]) -> str:
    """Return a content as one string."""
    return content if isinstance(content, str) else "".join(part.text for part in content)


class MessageItem(Body):
    """A message of any role; `phase` and `status` of an earlier answer are not read."""

    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: str | TextParts
    id: Name | None = None
    status: ItemStatus | None = None
    phase: Literal["commentary", "final_answer"] | None = None

    @property
    def joined(self) -> dict[str, Any]:
        """The item as JSON data whose texts are one part, without fields that are not read."""
        return {**self.model_dump(exclude_none=True, exclude={"content"}), "content": text_of(self.content)}

    @property
    def num_characters(self) -> int:
        """Characters of all texts."""
        return len(text_of(self.content))


class FunctionCallItem(FunctionCall):
    """A call of a function by an earlier answer."""

    type: Literal["function_call"]
    call_id: Name
    id: Name | None = None
    status: ItemStatus | None = None

    @property
    def joined(self) -> dict[str, Any]:
        """The item as JSON data whose texts are one part, without fields that are not read."""
        return self.model_dump(exclude_none=True)

    @property
    def num_characters(self) -> int:
        """Characters of all texts."""
        return len(self.arguments)


class FunctionCallOutputItem(Body):
    """The result of a call."""

    type: Literal["function_call_output"]
    call_id: Name
    output: str | TextParts
    id: Name | None = None
    status: ItemStatus | None = None

    @property
    def joined(self) -> dict[str, Any]:
        """The item as JSON data whose texts are one part, without fields that are not read."""
        return {**self.model_dump(exclude_none=True, exclude={"output"}), "output": text_of(self.output)}

    @property
    def num_characters(self) -> int:
        """Characters of all texts."""
        return len(text_of(self.output))


class ReasoningItem(Body):
    """The reasoning of an earlier answer; `summary` is not read."""

    type: Literal["reasoning"]
    content: Annotated[list[ReasoningText], Field(max_length=MAX_PARTS, fail_fast=True), at_most(MAX_PARTS)] = []
    summary: Extras = []
    id: Name | None = None
    status: ItemStatus | None = None

    @property
    def text(self) -> str:
        """The reasoning as one string."""
        return "".join(part.text for part in self.content)

    @property
    def joined(self) -> dict[str, Any]:
        """The item as JSON data whose texts are one part, without fields that are not read."""
        content = [{"type": "reasoning_text", "text": self.text}]
        return {**self.model_dump(exclude_none=True, exclude={"content", "summary"}), "content": content}

    @property
    def num_characters(self) -> int:
        """Characters of all texts."""
        return len(self.text)


KINDS_OF_ITEMS = ("message", "function_call", "function_call_output", "reasoning")


InputItem = Annotated[
    Annotated[MessageItem, Tag("[message]")]
    | Annotated[FunctionCallItem, Tag("[function_call]")]
    | Annotated[FunctionCallOutputItem, Tag("[function_call_output]")]
    | Annotated[ReasoningItem, Tag("[reasoning]")],
    tagged(
        KINDS_OF_ITEMS,
        "type",
        f"type: an item must be one of {', '.join(KINDS_OF_ITEMS)}",
        default="message",
    ),
]


InputItems = Annotated[
    list[InputItem],
    Field(min_length=1, max_length=MAX_ITEMS, fail_fast=True),
    few_entries,
    at_most(MAX_ITEMS),
    check_texts,
]
