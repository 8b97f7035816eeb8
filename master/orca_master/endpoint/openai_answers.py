"""Wire types of the OpenAI API's responses, stream chunks and errors.

Source: OpenAI API reference, "Completions", "Chat", "Models" and "Errors"; /tokenize and /detokenize are vLLM's.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel
from typing_extensions import TypedDict


class CompletionLogprobs(BaseModel):
    """`logprobs` of a completion."""

    tokens: list[str] = []
    token_logprobs: list[float | None] = []
    top_logprobs: list[dict[str, float] | None] = []
    text_offset: list[int] = []


class PromptLogprob(BaseModel):
    """A token in the place of one of the prompt's; `rank` 1 is the likeliest (vLLM's)."""

    logprob: float
    rank: int
    decoded_token: str


PromptLogprobs = list[dict[int, PromptLogprob] | None]
"""By token id, for each token of a prompt; null for the first (vLLM's)."""


class CompletionChoice(BaseModel):
    """One entry of `choices`; in a stream it contains only the new text."""

    index: int
    text: str
    finish_reason: Literal["stop", "length"] | None
    stop_reason: int | str | None = None
    """The stop string or token of the request that ended the choice (vLLM's)."""
    logprobs: CompletionLogprobs | None = None
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None
    prompt_logprobs: PromptLogprobs | None = None


class TokenLogprob(TypedDict):
    """A token, its log probability and its bytes."""

    token: str
    logprob: float
    bytes: list[int]


class ChatTokenLogprob(TokenLogprob):
    """A generated token and its most likely alternatives."""

    top_logprobs: list[TokenLogprob]


class ChatLogprobs(BaseModel):
    """`logprobs` of a chat choice."""

    content: list[ChatTokenLogprob]


class FunctionCall(BaseModel):
    """Name and arguments (JSON as text) of a call; in a stream only the new characters of the arguments."""

    name: str | None = None
    arguments: str


class ToolCall(BaseModel):
    """A call of a function; `index` only in a stream, where the first chunk of a call has its id, type and name."""

    index: int | None = None
    id: str | None = None
    type: Literal["function"] | None = None
    function: FunctionCall


class AssistantMessage(BaseModel):
    """The assistant's message; in a stream `delta` with only the new fields."""

    role: Literal["assistant"] | None = None
    content: str | None = None
    reasoning: str | None = None
    """vLLM's newer name; `reasoning_content`, which is the same, is that of DeepSeek's API and of other clients."""
    reasoning_content: str | None = None
    tool_calls: list[ToolCall] | None = None


class ChatChoice(BaseModel):
    """One entry of `choices`: `message` in a response, `delta` in a stream."""

    index: int
    message: AssistantMessage | None = None
    delta: AssistantMessage | None = None
    finish_reason: Literal["stop", "length", "tool_calls"] | None
    stop_reason: int | str | None = None
    """See CompletionChoice."""
    logprobs: ChatLogprobs | None = None
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None


class PromptTokensDetails(BaseModel):
    """Prompt tokens by kind."""

    cached_tokens: int


class Usage(BaseModel):
    """Token counts of one request."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class CompletionTokensDetails(BaseModel):
    """Generated tokens by kind."""

    reasoning_tokens: int


class ChatUsage(Usage):
    """Token counts of a chat whose reasoning is separated from the answer."""

    completion_tokens_details: CompletionTokensDetails


class Completion(BaseModel):
    """Response of /v1/completions, and each chunk of its stream."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | None = None


class ChatCompletion(BaseModel):
    """Response of /v1/chat/completions, and each chunk of its stream."""

    id: str
    object: Literal["chat.completion", "chat.completion.chunk"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: ChatUsage | Usage | None = None
    prompt_logprobs: PromptLogprobs | None = None


class ModelCard(BaseModel):
    """One entry of /v1/models."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "orca"
    max_model_len: int
    parent: str | None = None
    """Of an adapter: the model (vLLM's)."""


class ModelList(BaseModel):
    """Response of /v1/models."""

    object: Literal["list"] = "list"
    data: list[ModelCard]


class Tokenized(BaseModel):
    """Response of /tokenize."""

    tokens: list[int]
    count: int
    max_model_len: int
    token_strs: list[str] | None = None


class Detokenized(BaseModel):
    """Response of /detokenize."""

    prompt: str


class ErrorDetail(BaseModel):
    """The object `error`, as OpenAI's clients expect it."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorBody(BaseModel):
    """Body of every response that is not 2xx."""

    error: ErrorDetail
