"""Messages of /v1/messages: blocks of text, of tool calls and of their results.

Source: Anthropic API reference, "Messages". `cache_control` is accepted and has no effect, because prefixes are always
shared.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, Tag, ValidationInfo
from pydantic_core import PydanticCustomError

from orca_master.bodies.body import Body, Name, tagged
from orca_master.bodies.lengths import MAX_ENTRIES, Lengths, at_most, check_depth, refuse_more
from orca_master.bodies.openai_requests import MAX_MESSAGES, MAX_PARTS


class CacheControl(Body):
    """Where a prefix ends that is worth keeping."""

    type: Literal["ephemeral"]
    ttl: Name | None = None
    scope: Name | None = None


class TextBlock(Body):
    """A block of text."""

    type: Literal["text"]
    text: str
    cache_control: CacheControl | None = None


class ThinkingBlock(Body):
    """The reasoning of an earlier answer; the signature has no effect."""

    type: Literal["thinking"]
    thinking: str
    signature: str = ""


class ToolUseBlock(Body):
    """A tool call of an earlier answer."""

    type: Literal["tool_use"]
    id: Name
    name: Name
    input: Annotated[dict[str, Any], AfterValidator(check_depth)]
    cache_control: CacheControl | None = None

    @property
    def arguments(self) -> str:
        """The input as JSON."""
        return json.dumps(self.input)


_ONLY_TEXT = "only text blocks are supported here: send images and documents as text"
Texts = Annotated[
    list[Annotated[Annotated[TextBlock, Tag("[text]")], tagged(("text",), "type", _ONLY_TEXT)]],
    Field(max_length=MAX_PARTS, fail_fast=True),
    at_most(MAX_PARTS),
]


class ToolResultBlock(Body):
    """The result of a tool call."""

    type: Literal["tool_result"]
    tool_use_id: Name
    content: str | Texts | None = None
    is_error: bool = False
    cache_control: CacheControl | None = None


def text_of(content: str | list[TextBlock] | None, separator: str = "\n") -> str:
    """Return a content of text as one string."""
    return content if isinstance(content, str) else separator.join(block.text for block in content or ())


UserBlock = Annotated[
    Annotated[TextBlock, Tag("[text]")] | Annotated[ToolResultBlock, Tag("[tool_result]")],
    tagged(
        ("text", "tool_result"),
        "type",
        "only text and tool_result blocks are supported in a user's message: send images and documents as text",
    ),
]
AssistantBlock = Annotated[
    Annotated[TextBlock, Tag("[text]")]
    | Annotated[ToolUseBlock, Tag("[tool_use]")]
    | Annotated[ThinkingBlock, Tag("[thinking]")],
    tagged(
        ("text", "tool_use", "thinking"),
        "type",
        "only text, tool_use and thinking blocks are supported in an assistant's message: omit others",
    ),
]


class UserMessage(Body):
    """A message of the user, or results of tools."""

    role: Literal["user"]
    content: str | Annotated[list[UserBlock], Field(max_length=MAX_PARTS, fail_fast=True), at_most(MAX_PARTS)]


class AssistantMessage(Body):
    """An earlier answer."""

    role: Literal["assistant"]
    content: str | Annotated[list[AssistantBlock], Field(max_length=MAX_PARTS, fail_fast=True), at_most(MAX_PARTS)]


class SystemMessage(Body):
    """Instructions between other messages."""

    role: Literal["system"]
    content: str | Texts


AnyMessage = UserMessage | AssistantMessage | SystemMessage


def _size(message: AnyMessage) -> tuple[int, int]:
    """Return the number of blocks and of characters."""
    if isinstance(message.content, str):
        return 1, len(message.content)
    blocks, characters = len(message.content), 0
    for block in message.content:
        match block:
            case TextBlock():
                characters += len(block.text)
            case ThinkingBlock():
                characters += len(block.thinking)
            case ToolUseBlock():
                characters += len(block.arguments)
            case ToolResultBlock():
                characters += len(text_of(block.content))
                blocks += len(block.content) if isinstance(block.content, list) else 0
    return blocks, characters


def _can_be_continued(message: AssistantMessage) -> bool:
    if isinstance(message.content, str):
        return bool(message.content)
    texts = [block for block in message.content if isinstance(block, TextBlock)]
    return len(texts) == len(message.content) and bool(text_of(texts, ""))


def _check_messages(messages: list[AnyMessage], info: ValidationInfo) -> list[AnyMessage]:
    sizes = [_size(message) for message in messages]
    num_blocks = sum(blocks for blocks, _ in sizes)
    refuse_more(num_blocks, MAX_ENTRIES, "{count} blocks in all messages, at most {limit} are allowed: join texts")
    Lengths.of(info).check_characters(sum(characters for _, characters in sizes))
    if isinstance(last := messages[-1], AssistantMessage) and not _can_be_continued(last):
        raise PydanticCustomError(
            "prefill", "a last message of the assistant must consist of text, which the answer continues"
        )
    return messages


Messages = Annotated[
    list[
        Annotated[
            Annotated[UserMessage, Tag("[user]")]
            | Annotated[AssistantMessage, Tag("[assistant]")]
            | Annotated[SystemMessage, Tag("[system]")],
            tagged(("user", "assistant", "system"), "role", "the role must be user, assistant or system"),
        ]
    ],
    Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True),
    at_most(MAX_MESSAGES),
    AfterValidator(_check_messages),
]
