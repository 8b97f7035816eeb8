"""Request bodies of /v1/messages and /v1/messages/count_tokens, for text and tools.

Source: Anthropic API reference, "Messages" and "Count tokens in a message". messages_translation.py makes chat requests
of these bodies.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo, model_validator
from pydantic_core import PydanticCustomError

from orca_master.bodies.body import Body, Name
from orca_master.bodies.lengths import Lengths, at_most, check_options
from orca_master.bodies.messages_blocks import CacheControl, Messages, TextBlock, Texts, text_of
from orca_master.bodies.openai_requests import TokenCount
from orca_master.bodies.sampling_fields import MAX_COUNT, MAX_STOP_STRINGS, StopString
from orca_master.bodies.tools import MAX_TOOLS, FunctionName, check_size

LEAST_BUDGET = 1024
"""Minimum of `budget_tokens`, as in Anthropic's API."""


def _check_system(system: str | list[TextBlock] | None, info: ValidationInfo) -> str | list[TextBlock] | None:
    Lengths.of(info).check_characters(len(text_of(system)))
    return system


def _check_type(value: Any) -> Any:
    if value != "custom":
        raise PydanticCustomError(
            "unsupported",
            "only tools of the type custom are supported: describe the tool by input_schema, and run it in the client",
        )
    return value


class Tool(Body):
    """A tool that the client runs. `eager_input_streaming` has no effect; `strict`: as in a chat."""

    type: Annotated[Literal["custom"], BeforeValidator(_check_type)] = "custom"
    name: FunctionName
    description: str | None = None
    input_schema: Annotated[dict[str, Any], check_options]
    strict: bool = False
    eager_input_streaming: bool = False
    cache_control: CacheControl | None = None


class ToolChoice(Body):
    """Whether the answer calls tools; `name` only with the type `tool`."""

    type: Literal["auto", "any", "tool", "none"]
    name: FunctionName | None = None
    disable_parallel_tool_use: bool = False

    @model_validator(mode="after")
    def _name_agrees(self) -> ToolChoice:
        if (self.name is not None) != (self.type == "tool"):
            raise PydanticCustomError("name", "name is needed with the type tool, and only with this type")
        return self


class Thinking(Body):
    """Whether the answer has blocks of reasoning, and of how many tokens at most; see `budget`."""

    type: Literal["enabled", "adaptive", "disabled"]
    budget_tokens: TokenCount | None = None
    display: Literal["summarized", "omitted"] = "summarized"

    @property
    def budget(self) -> int | None:
        """Most tokens of the reasoning, None without a limit: only the type `enabled` has one."""
        return self.budget_tokens if self.type == "enabled" else None

    @model_validator(mode="after")
    def _budget_is_large(self) -> Thinking:
        if self.budget is not None and self.budget < LEAST_BUDGET:
            raise PydanticCustomError("budget", f"budget_tokens must be at least {LEAST_BUDGET}: leave it out")
        return self


class OutputConfig(Body):
    """How much the model is to reason, a variable of the chat template; `thinking` turns reasoning on and off."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None


class CountTokensRequest(Body):
    """Body of POST /v1/messages/count_tokens: what makes up a prompt."""

    model: Name
    messages: Messages
    system: Annotated[str | Texts | None, AfterValidator(_check_system)] = None
    tools: Annotated[list[Tool], Field(max_length=MAX_TOOLS, fail_fast=True), check_size, at_most(MAX_TOOLS)] = []
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    cache_control: CacheControl | None = None
    context_management: Annotated[dict[str, Any], check_options] | None = None
    """No effect: the client keeps its conversation within the context."""
    output_config: OutputConfig | None = None


class Metadata(Body):
    """`metadata`, which has no effect."""

    user_id: Name | None = None


class MessagesRequest(CountTokensRequest):
    """Body of POST /v1/messages."""

    max_tokens: TokenCount
    temperature: Annotated[float, Field(ge=0, le=2)] = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    top_k: Annotated[int, Field(ge=0, le=MAX_COUNT)] = 0
    stop_sequences: Annotated[
        list[StopString], Field(max_length=MAX_STOP_STRINGS, fail_fast=True), at_most(MAX_STOP_STRINGS)
    ] = []
    stream: bool = False
    metadata: Metadata | None = None
    service_tier: Literal["auto", "standard_only"] = "auto"

    @model_validator(mode="after")
    def _no_empty_stop(self) -> MessagesRequest:
        if "" in self.stop_sequences:
            raise ValueError("stop_sequences: a stop sequence must not be empty")
        return self

    @model_validator(mode="after")
    def _budget_leaves_an_answer(self) -> MessagesRequest:
        """With tools a budget may be of several answers: Anthropic's models reason between calls, too."""
        budget = None if self.thinking is None or self.tools else self.thinking.budget
        if budget is not None and budget >= self.max_tokens:
            way_out = "increase max_tokens, or send the type adaptive"
            if self.max_tokens > LEAST_BUDGET:
                way_out = f"increase max_tokens, or reduce budget_tokens to {self.max_tokens - 1} at most"
            raise ValueError(
                f"thinking: budget_tokens, {budget}, must be less than max_tokens, {self.max_tokens}: {way_out}"
            )
        return self
