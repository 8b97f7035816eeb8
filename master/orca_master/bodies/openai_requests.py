"""Request bodies of the OpenAI API; unsupported fields are refused with an error that names the field.

Source: OpenAI API reference, "Completions" and "Chat". Further fields have vLLM's names and meanings. Lengths are
checked before contents, and a list is refused at its first invalid entry (lengths.py).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from orca_master.bodies.absent_fields import CHAT, COMPLETION
from orca_master.bodies.body import Body, Metadata, Name, RequestId
from orca_master.bodies.lengths import (
    at_most,
    check_options,
    check_texts,
    few_entries,
)
from orca_master.bodies.prompts import Prompts
from orca_master.bodies.sampling_fields import MAX_COUNT, SamplingFields
from orca_master.bodies.structured_outputs import ResponseFormat, grammar_of
from orca_master.bodies.tools import NamedTool, ToolCalls, ToolList
from orca_master.bodies.truncation import PromptTokens, TruncationSide
from orca_master.scheduling.constraint import Grammar
from orca_master.scheduling.sampling_parameters import MAX_LOGPROBS

TokenCount = Annotated[int, Field(ge=1, le=MAX_COUNT)]
LogprobCount = Annotated[int, Field(ge=0, le=MAX_LOGPROBS)]
MAX_CHOICES = 128
MAX_MESSAGES = 4096
MAX_PARTS = 1024
"""Maximum parts of one message."""
UsageInStream = Literal["none", "last", "all"]
"""The chunks of a stream that have the usage."""


class StreamOptions(Body):
    """`stream_options`."""

    include_usage: bool = False
    include_obfuscation: Literal[False] = False
    continuous_usage_stats: bool = False
    """Each chunk has the usage so far, if `include_usage` is true, too (vLLM's)."""


class GenerationRequest(SamplingFields):
    """Fields shared by completions and chat completions."""

    model: Name | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] = 1
    best_of: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    return_token_ids: bool = False
    return_tokens_as_token_ids: bool = False
    prompt_logprobs: LogprobCount | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    user: Name | None = None
    response_format: ResponseFormat | None = None
    truncate_prompt_tokens: PromptTokens | None = None
    truncation_side: TruncationSide = "left"
    request_id: RequestId | None = None

    @model_validator(mode="after")
    def _fields_agree(self) -> GenerationRequest:
        if self.best_of is not None and self.best_of < self.n:
            raise ValueError(f"best_of: {self.best_of} is below n, {self.n}")
        if self.num_choices > self.n and self.stream:
            raise ValueError("best_of: above n is not supported with stream: true")
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options: is only allowed with stream: true")
        if self.prompt_logprobs is not None and self.stream:
            raise ValueError("prompt_logprobs: is not supported with stream: true")
        grammar_of(self.response_format, self.structured_outputs)
        return self

    @property
    def grammar(self) -> Grammar | None:
        """What the answers must match, None for any text."""
        return grammar_of(self.response_format, self.structured_outputs)

    @property
    def has_grammar(self) -> bool:
        """True if `grammar` is not None, without making the grammar."""
        is_format = self.response_format is not None and self.response_format["type"] != "text"
        return is_format or self.structured_outputs is not None

    @property
    def continues_text(self) -> bool:
        """True if the answer continues the text of the prompt, False if it is a message of its own."""
        return True

    @property
    def num_choices(self) -> int:
        """Number of choices that are generated for each prompt; the response has the best `n` of them."""
        return self.best_of or self.n

    @property
    def prompt_logprob_counts(self) -> list[int]:
        """Number of likely tokens beside each token of the prompt, for each form in which a choice has them."""
        return [] if self.prompt_logprobs is None else [self.prompt_logprobs]

    @property
    def num_prompt_logprobs(self) -> int | None:
        """The largest of these numbers; None: no log probabilities of prompts."""
        return max(self.prompt_logprob_counts, default=None)

    @property
    def tool_names(self) -> set[str]:
        """Names of the functions that the answer can call."""
        return set()

    @property
    def usage_in_stream(self) -> UsageInStream:
        """Which chunks of a stream have the usage."""
        options = self.stream_options or StreamOptions()
        if not options.include_usage:
            return "none"
        return "all" if options.continuous_usage_stats else "last"


class CompletionRequest(GenerationRequest):
    """Body of POST /v1/completions."""

    absent = COMPLETION
    prompt: Prompts
    max_tokens: Annotated[int, Field(ge=0, le=MAX_COUNT)] = 16
    echo: bool = False
    logprobs: LogprobCount | None = None
    add_special_tokens: bool = True

    @model_validator(mode="after")
    def _some_text(self) -> CompletionRequest:
        if self.max_tokens == 0 and not self.echo:
            raise ValueError("max_tokens: 0 is only allowed with echo: true: send at least 1")
        return self

    @property
    def texts(self) -> list[str] | None:
        """The prompts, None if they are token ids."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        return self.prompt if isinstance(self.prompt[0], str) else None

    @property
    def prompt_logprob_counts(self) -> list[int]:
        """See GenerationRequest; with `echo` also that of `logprobs`."""
        return super().prompt_logprob_counts + ([self.logprobs] if self.echo and self.logprobs is not None else [])


class TextPart(Body):
    """One part of a message's content; only text parts are supported."""

    type: Literal["text"]
    text: str


TextContent = str | Annotated[list[TextPart], Field(max_length=MAX_PARTS, fail_fast=True), at_most(MAX_PARTS)]


class Prediction(Body):
    """`prediction`: a text that the answer is expected to repeat."""

    type: Literal["content"]
    content: TextContent


class ChatMessage(Body):
    """One message; all fields are passed to the chat template."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: TextContent | None = None
    name: Name | None = None
    tool_calls: ToolCalls = []
    tool_call_id: Name | None = None
    reasoning_content: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _of_other_servers(cls, data: Any) -> Any:
        """Accept answers of other servers: clients send them back as they are.

        Drops the empty list of annotations that each of OpenAI's has; `reasoning` is vLLM's name of reasoning_content.
        """
        if not isinstance(data, dict):
            return data
        known = {name: value for name, value in data.items() if name != "annotations" or value != []}
        reasoning = known.pop("reasoning", None)
        return known if known.get("reasoning_content") is not None else {**known, "reasoning_content": reasoning}

    @property
    def text(self) -> str:
        """The content as one string."""
        if isinstance(self.content, list):
            return "".join(part.text for part in self.content)
        return self.content or ""

    @property
    def num_entries(self) -> int:
        """Number of parts, one for a text, and of calls."""
        return (len(self.content) if isinstance(self.content, list) else 1) + len(self.tool_calls)

    @property
    def num_characters(self) -> int:
        """Characters of all texts."""
        arguments = sum(len(call.function.arguments) for call in self.tool_calls)
        return len(self.text) + len(self.reasoning_content or "") + arguments


ReasoningEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
Messages = Annotated[
    list[ChatMessage],
    Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True),
    few_entries,
    at_most(MAX_MESSAGES),
    check_texts,
]


TemplateOptions = Annotated[dict[str, Any], check_options]


def check_ends(continues: bool, asks_for_prompt: bool, given: set[str]) -> None:
    """Raise ValueError if a prompt is to end within its last message, and after it by a field that was `given`."""
    if continues and asks_for_prompt and "add_generation_prompt" in given:
        raise ValueError("continue_final_message: needs add_generation_prompt: false")


class ChatCompletionRequest(GenerationRequest):
    """Body of POST /v1/chat/completions."""

    absent = CHAT
    messages: Messages
    max_tokens: TokenCount | None = None
    max_completion_tokens: TokenCount | None = None
    logprobs: bool = False
    top_logprobs: LogprobCount | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    reasoning_effort: ReasoningEffort | None = None
    include_reasoning: bool = True
    chat_template_kwargs: TemplateOptions = {}
    tools: ToolList = []
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool = True
    store: Literal[False] = False
    metadata: Metadata = {}
    modalities: Annotated[list[Literal["text"]], Field(max_length=1, fail_fast=True)] = []
    verbosity: Literal["medium"] = "medium"
    safety_identifier: Name | None = None
    prompt_cache_key: Name | None = None
    service_tier: Literal["auto", "default"] = "auto"
    prediction: Annotated[Prediction | None, Field(exclude=True)] = None
    """Has no effect: answers have the same tokens, and drafts are those of --speculative-tokens."""

    @model_validator(mode="after")
    def _chat_fields_agree(self) -> ChatCompletionRequest:
        if self.top_logprobs and not self.logprobs:
            raise ValueError("top_logprobs: needs logprobs: true")
        if self.num_choices > self.n:
            raise ValueError("best_of: above n is only supported by /v1/completions")
        check_ends(self.continue_final_message, self.add_generation_prompt, self.model_fields_set)
        if not self.tools and self.tool_choice not in (None, "none"):
            raise ValueError("tool_choice: needs tools")
        if isinstance(self.tool_choice, NamedTool) and self.tool_choice.function.name not in self.tool_names:
            raise ValueError(f"tool_choice: tools has no function {self.tool_choice.function.name!r}")
        return self

    @property
    def continues_text(self) -> bool:
        """See GenerationRequest."""
        return self.continue_final_message

    @property
    def tool_names(self) -> set[str]:
        """Names of the functions that the answer can call."""
        return set() if self.tool_choice == "none" else {tool.function.name for tool in self.tools}

    @property
    def template_options(self) -> dict[str, Any]:
        """Variables for the chat template, of which many know only one of the two about the reasoning, as in vLLM."""
        if (effort := self.reasoning_effort) is None:
            return self.chat_template_kwargs
        return {"reasoning_effort": effort, "enable_thinking": effort != "none", **self.chat_template_kwargs}

    @property
    def forces_calls(self) -> bool:
        """True if the answer consists of calls."""
        return self.tool_choice == "required" or isinstance(self.tool_choice, NamedTool)
