"""`ResponseRequest`: the body of POST /v1/responses; unsupported fields are refused with the way out.

Source: OpenAI API reference, "Responses". Further fields have vLLM's names and meanings.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Required

from pydantic import ConfigDict, Discriminator, Field, Tag, model_validator, with_config
from typing_extensions import TypedDict

from orca_master.bodies.absent_fields import RESPONSE
from orca_master.bodies.body import Body, Metadata, Name
from orca_master.bodies.json_values import repeatable
from orca_master.bodies.lengths import at_most, at_most_characters, check_options, check_text
from orca_master.bodies.openai_requests import ReasoningEffort, TokenCount
from orca_master.bodies.response_items import InputItem, InputItems, MessageItem
from orca_master.bodies.sampling_fields import SamplingFields
from orca_master.bodies.tools import MAX_TOOLS, FunctionName, check_size
from orca_master.scheduling.constraint import MAX_GRAMMAR_BYTES
from orca_master.scheduling.sampling_parameters import MAX_LOGPROBS

LOGPROBS = "message.output_text.logprobs"


class FunctionTool(Body):
    """One entry of `tools`."""

    type: Literal["function"]
    name: FunctionName
    description: str | None = None
    parameters: Annotated[dict[str, Any], check_options, repeatable] = {}
    strict: bool | None = None


class FunctionToolChoice(Body):
    """A `tool_choice` of one function."""

    type: Literal["function"]
    name: FunctionName


# A typed dictionary, because a pydantic model cannot have a field named `schema`.
@with_config(ConfigDict(extra="forbid"))
class TextFormat(TypedDict, total=False):
    """`format` of `text`."""

    type: Required[Literal["text", "json_object", "json_schema"]]
    name: Annotated[str, at_most_characters(4096)] | None
    description: Annotated[str, at_most_characters(MAX_GRAMMAR_BYTES)] | None
    schema: Annotated[dict[str, Any], repeatable] | None
    strict: bool | None


class TextOptions(Body):
    """`text`."""

    format: TextFormat | None = None
    verbosity: Literal["medium"] = "medium"


class ReasoningOptions(Body):
    """`reasoning`: the effort is a variable of the chat template."""

    effort: ReasoningEffort | None = None


class ResponseStreamOptions(Body):
    """`stream_options`: events are sent without padding."""

    include_obfuscation: Literal[False] = False


def _kind_of_input(value: Any) -> str:
    return "[items]" if isinstance(value, list) else "[text]"


class ResponseRequest(SamplingFields):
    """Body of POST /v1/responses."""

    absent = RESPONSE
    input: Annotated[
        Annotated[str, check_text, Tag("[text]")] | Annotated[InputItems, Tag("[items]")],
        Discriminator(_kind_of_input),
    ]
    model: Name | None = None
    instructions: Annotated[str, check_text] | None = None
    max_output_tokens: TokenCount | None = None
    stream: bool = False
    stream_options: ResponseStreamOptions | None = None
    store: bool = True
    background: bool = False
    previous_response_id: Name | None = None
    tools: Annotated[
        list[FunctionTool], Field(max_length=MAX_TOOLS, fail_fast=True), check_size, at_most(MAX_TOOLS)
    ] = []
    tool_choice: Literal["none", "auto", "required"] | FunctionToolChoice = "auto"
    parallel_tool_calls: bool = True
    text: TextOptions = TextOptions()
    reasoning: ReasoningOptions = ReasoningOptions()
    include: Annotated[list[Literal["message.output_text.logprobs"]], Field(max_length=16, fail_fast=True)] = []
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] = 0
    truncation: Literal["auto", "disabled"] = "disabled"
    metadata: Metadata = {}
    user: Name | None = None
    safety_identifier: Name | None = None
    prompt_cache_key: Name | None = None
    service_tier: Literal["auto", "default"] = "auto"
    chat_template_kwargs: Annotated[dict[str, Any], check_options] = {}

    @model_validator(mode="after")
    def _fields_agree(self) -> ResponseRequest:
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options: is only allowed with stream: true")
        if self.background and not self.store:
            raise ValueError("background: is only allowed with store: true, because clients read the response later")
        if self.max_output_tokens is not None and self.min_tokens > self.max_output_tokens:
            raise ValueError(f"min_tokens: {self.min_tokens} exceeds max_output_tokens, {self.max_output_tokens}")
        if self.top_logprobs and not self.wants_logprobs:
            raise ValueError(f"top_logprobs: needs include: [{LOGPROBS!r}]")
        form = self.text.format or {"type": "text"}
        wanted = form["type"] == "json_schema"
        for name in ("name", "schema"):
            if wanted and form.get(name) is None:
                raise ValueError(f"text: format.{name} is missing, it is needed with type: json_schema")
        if not wanted and any(form.get(name) is not None for name in ("name", "description", "schema", "strict")):
            raise ValueError("text: name, description, schema and strict of format are only allowed with json_schema")
        if self.structured_outputs is not None and form["type"] != "text":
            raise ValueError("structured_outputs: is not allowed together with text.format")
        return self

    @property
    def wants_logprobs(self) -> bool:
        """True if the texts of the answer have log probabilities."""
        return LOGPROBS in self.include

    @property
    def items(self) -> list[InputItem]:
        """`input` as a list."""
        return self.input if isinstance(self.input, list) else [MessageItem(role="user", content=self.input)]
