"""Wire types of the OpenAI API, as far as served; a field that is not served is refused by its name.

Source: OpenAI API reference, "Completions" and "Chat". Fields beyond OpenAI's (`top_k`, `ignore_eos` …) have vLLM's
names and meanings.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

MAX_COUNT = 10**9
"""Of tokens: longer than any sequence, and below what the protocol's 32 bits hold."""
TokenId = Annotated[int, Field(ge=0, le=2**31 - 1)]
TokenCount = Annotated[int, Field(ge=1, le=MAX_COUNT)]
Penalty = Annotated[float, Field(ge=-2, le=2)]
MAX_STOP_STRINGS = 16
MAX_CHOICES = 128
MAX_PROMPTS = 1024
MAX_LOGPROBS = 20


def _without_nulls(model: type[BaseModel], data: Any) -> Any:
    """Drops fields that are null, unless they are required: clients send null for what they do not mean."""
    if not isinstance(data, dict):
        return data
    required = {name for name, field in model.model_fields.items() if field.is_required()}
    return {name: value for name, value in data.items() if value is not None or name in required}


class StreamOptions(BaseModel):
    """`stream_options`."""

    model_config = ConfigDict(extra="forbid")

    include_usage: bool = False


class GenerationRequest(BaseModel):
    """What both endpoints share. `None` for a field with a default means the default."""

    model_config = ConfigDict(extra="forbid")

    model: str | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    top_k: Annotated[int, Field(ge=-1, le=MAX_COUNT)] = 0
    min_p: Annotated[float, Field(ge=0, le=1)] = 0.0
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] = 1
    best_of: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    stop: str | Annotated[list[str], Field(max_length=MAX_STOP_STRINGS)] | None = None
    stop_token_ids: Annotated[list[TokenId], Field(max_length=MAX_STOP_STRINGS)] = []
    include_stop_str_in_output: bool = False
    presence_penalty: Penalty = 0.0
    frequency_penalty: Penalty = 0.0
    repetition_penalty: Annotated[float, Field(gt=0, le=100)] = 1.0
    logit_bias: dict[Annotated[str, Field(pattern=r"^[0-9]{1,10}$")], Annotated[float, Field(ge=-100, le=100)]] = {}
    ignore_eos: bool = False
    min_tokens: Annotated[int, Field(ge=0, le=MAX_COUNT)] = 0
    skip_special_tokens: bool = True
    return_token_ids: bool = False
    stream: bool = False
    stream_options: StreamOptions | None = None
    user: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _null_means_default(cls, data: Any) -> Any:
        return _without_nulls(cls, data)

    @field_validator("stop")
    @classmethod
    def _no_empty_stop(cls, stop: str | list[str] | None) -> str | list[str] | None:
        if stop == "" or (isinstance(stop, list) and "" in stop):
            raise ValueError("a stop string must not be empty")
        return stop

    @model_validator(mode="after")
    def _fields_agree(self) -> GenerationRequest:
        if self.best_of is not None and self.best_of != self.n:
            raise ValueError("best_of: other than n is not supported")
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options: is only allowed with stream: true")
        return self

    @property
    def stop_strings(self) -> list[str]:
        """`stop` as a list."""
        return [self.stop] if isinstance(self.stop, str) else self.stop or []

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with a usage chunk."""
        return self.stream_options is not None and self.stream_options.include_usage


class CompletionRequest(GenerationRequest):
    """Body of POST /v1/completions."""

    prompt: (
        str
        | Annotated[list[TokenId], Field(min_length=1)]
        | Annotated[list[str], Field(min_length=1, max_length=MAX_PROMPTS)]
        | Annotated[list[Annotated[list[TokenId], Field(min_length=1)]], Field(min_length=1, max_length=MAX_PROMPTS)]
    )
    max_tokens: TokenCount = 16
    echo: bool = False
    logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None

    @model_validator(mode="after")
    def _echo_without_logprobs(self) -> CompletionRequest:
        if self.echo and self.logprobs is not None:
            raise ValueError("echo: is not supported together with logprobs")
        return self


class TextPart(BaseModel):
    """One part of a message's content; parts other than text are refused."""

    model_config = ConfigDict(extra="forbid")

    type: Literal["text"]
    text: str


class ChatMessage(BaseModel):
    """One message; `name` and the like are passed on to the chat template."""

    model_config = ConfigDict(extra="forbid")

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextPart] | None = None
    name: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _null_means_absent(cls, data: Any) -> Any:
        return _without_nulls(cls, data)

    @property
    def text(self) -> str:
        """The content as one string."""
        if isinstance(self.content, list):
            return "".join(part.text for part in self.content)
        return self.content or ""


class ResponseFormat(BaseModel):
    """`response_format`: text is what there is."""

    model_config = ConfigDict(extra="forbid")

    type: Literal["text"]


class ChatCompletionRequest(GenerationRequest):
    """Body of POST /v1/chat/completions."""

    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    max_tokens: TokenCount | None = None
    max_completion_tokens: TokenCount | None = None
    logprobs: bool = False
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    add_generation_prompt: bool = True
    chat_template_kwargs: dict[str, Any] = {}
    response_format: ResponseFormat | None = None

    @model_validator(mode="after")
    def _top_needs_logprobs(self) -> ChatCompletionRequest:
        if self.top_logprobs is not None and not self.logprobs:
            raise ValueError("top_logprobs: needs logprobs: true")
        return self


class CompletionLogprobs(BaseModel):
    """`logprobs` of a completion."""

    tokens: list[str] = []
    token_logprobs: list[float] = []
    top_logprobs: list[dict[str, float]] = []
    text_offset: list[int] = []


class CompletionChoice(BaseModel):
    """One entry of `choices`; in a stream it carries the new text alone."""

    index: int
    text: str
    finish_reason: Literal["stop", "length"] | None
    logprobs: CompletionLogprobs | None = None
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None


class TokenLogprob(BaseModel):
    """A token, its log probability and its bytes."""

    token: str
    logprob: float
    bytes: list[int]


class ChatTokenLogprob(TokenLogprob):
    """A generated token and its likeliest alternatives."""

    top_logprobs: list[TokenLogprob]


class ChatLogprobs(BaseModel):
    """`logprobs` of a chat choice."""

    content: list[ChatTokenLogprob]


class AssistantMessage(BaseModel):
    """What the model said; in a stream `delta`, where only news are set."""

    role: Literal["assistant"] | None = None
    content: str | None = None


class ChatChoice(BaseModel):
    """One entry of `choices`: `message` in an answer, `delta` in a stream."""

    index: int
    message: AssistantMessage | None = None
    delta: AssistantMessage | None = None
    finish_reason: Literal["stop", "length"] | None
    logprobs: ChatLogprobs | None = None
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None


class Usage(BaseModel):
    """Token counts of one request."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class Completion(BaseModel):
    """Answer of /v1/completions, and each chunk of its stream."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | None = None


class ChatCompletion(BaseModel):
    """Answer of /v1/chat/completions, and each chunk of its stream."""

    id: str
    object: Literal["chat.completion", "chat.completion.chunk"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage | None = None


class ModelCard(BaseModel):
    """One entry of /v1/models."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "orca"
    max_model_len: int


class ModelList(BaseModel):
    """Answer of /v1/models."""

    object: Literal["list"] = "list"
    data: list[ModelCard]


class TokenizeTextRequest(BaseModel):
    """Body of POST /tokenize for a prompt."""

    model_config = ConfigDict(extra="forbid")

    prompt: str
    model: str | None = None
    add_special_tokens: bool = True


class TokenizeChatRequest(BaseModel):
    """Body of POST /tokenize for messages, which pass through the chat template."""

    model_config = ConfigDict(extra="forbid")

    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    model: str | None = None
    add_generation_prompt: bool = True


class Tokenized(BaseModel):
    """Answer of /tokenize."""

    tokens: list[int]
    count: int
    max_model_len: int


class DetokenizeRequest(BaseModel):
    """Body of POST /detokenize."""

    model_config = ConfigDict(extra="forbid")

    model: str | None = None
    tokens: list[TokenId]


class Detokenized(BaseModel):
    """Answer of /detokenize."""

    prompt: str


class ErrorDetail(BaseModel):
    """What OpenAI's clients expect in `error`."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorBody(BaseModel):
    """Body of every answer that is not 2xx."""

    error: ErrorDetail
