"""What the methods of `LLM` take and return, with vLLM's names."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypedDict

from orca_protos import engine_pb2 as pb
from pydantic import ValidationError

from orca_master.bodies.openai_requests import ChatCompletionRequest, CompletionRequest
from orca_master.bodies.validation import described
from orca_master.endpoint.choice_run import Piece
from orca_master.endpoint.prompt_logprobs import PromptNumbers, TokenTexts
from orca_master.errors import RequestError


class PromptDictionary(TypedDict, total=False):
    """A prompt as text or as token ids; the text beside token ids is only returned."""

    prompt: str
    prompt_token_ids: Sequence[int]


Prompt = str | Sequence[int] | PromptDictionary


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Sampling parameters, with the names, meanings and bounds of the HTTP API's fields; None: the default.

    `max_tokens` None: the room that the prompt leaves.
    """

    n: int = 1
    max_tokens: int | None = 16
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool = False
    bad_words: list[str] | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] | None = None
    logprobs: int | None = None
    """Likely tokens beside each sampled one whose log probabilities are returned; None: no log probabilities."""
    prompt_logprobs: int | None = None
    """The same for each token of the prompt."""
    ignore_eos: bool = False
    min_tokens: int = 0
    skip_special_tokens: bool = True
    structured_outputs: dict[str, Any] | None = None
    allowed_token_ids: list[int] | None = None
    thinking_token_budget: int | None = None
    detokenize: bool = True
    """This and what follows are vLLM's, for programs that set them: other values than the defaults are refused."""
    spaces_between_special_tokens: bool = True
    logits_processors: list[Any] | None = None
    repetition_detection: Any = None
    extra_args: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Logprob:
    """The log probability of a token, its rank among all tokens from 1, None for an unlikely token, and its text."""

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


@dataclass(frozen=True, slots=True)
class CompletionOutput:
    """One choice of a completion."""

    index: int
    text: str
    token_ids: list[int]
    finish_reason: Literal["stop", "length"] | None
    logprobs: list[dict[int, Logprob]] | None = None
    """For each token, by token id: those of the likely tokens and of the sampled one. None unless requested."""
    stop_reason: int | str | None = None
    """The stop string or token of the parameters that ended the choice; None for other ends."""


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """The completions of one prompt; `prompt`: its text, None for token ids."""

    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    prompt_logprobs: list[dict[int, Logprob] | None] | None = None
    """None for the first token, else by token id: those of the token and of the likely ones. None unless requested."""


@dataclass(frozen=True, slots=True)
class EmbeddingOutput:
    """A vector of length 1."""

    embedding: list[float]


@dataclass(frozen=True, slots=True)
class EmbeddingRequestOutput:
    """The embedding of one prompt."""

    prompt_token_ids: list[int]
    outputs: EmbeddingOutput


def parameters_of(given: Any, count: int) -> list[SamplingParams]:
    """Return the parameters of each of `count` prompts: the same for all, or one of a sequence; raise RequestError."""
    parameters = [given] * count if isinstance(given, SamplingParams) else entries_of("sampling_params", given)
    for entry in parameters:
        if not isinstance(entry, SamplingParams):
            raise RequestError(f"sampling_params: {type(entry).__name__} is no orca.SamplingParams", "sampling_params")
    if len(parameters) != count:
        raise RequestError(f"sampling_params: {len(parameters)} for {count} prompts", "sampling_params")
    return parameters


def conversations_of(messages: Any) -> list[Any]:
    """Return one conversation or several as a list; raise RequestError."""
    several = entries_of("messages", messages)
    return [several] if several and isinstance(several[0], Mapping) else several


def entries_of(name: str, given: Any) -> list[Any]:
    """Return the entries of a list, or of another iterable than a text or a mapping; raise RequestError."""
    if isinstance(given, str | bytes | bytearray | Mapping) or not isinstance(given, Iterable):
        raise RequestError(f"{name}: {type(given).__name__} is no list", name)
    return list(given)


def request_of(sampling: SamplingParams, model: str | None) -> CompletionRequest:
    """Return a request body with the parameters, checked like a request over HTTP; raise RequestError."""
    values = {name: getattr(sampling, name) for name in SamplingParams.__slots__}
    if isinstance(bias := sampling.logit_bias or {}, Mapping):
        values["logit_bias"] = {str(token): value for token, value in bias.items()}
    try:
        return CompletionRequest(prompt=[0], model=model, **values)
    except ValidationError as error:
        raise described(error.errors()) from error


def chat_of(messages: Sequence[Any], options: Mapping[str, Any]) -> ChatCompletionRequest:
    """Return a request body with the messages and the variables of the chat template; raise RequestError."""
    try:
        json.dumps(options)  # as the process that renders the template gets them
    except (TypeError, ValueError, RecursionError) as error:
        raise RequestError(f"chat_template_kwargs: no JSON: {error}", "chat_template_kwargs") from error
    try:
        return ChatCompletionRequest(messages=messages, chat_template_kwargs=options)
    except ValidationError as error:
        raise described(error.errors()) from error


def output_of(
    text: str | None, tokens: list[int], choices: list[list[Piece]], sampling: SamplingParams, texts: TokenTexts
) -> RequestOutput:
    """Return the completions of a prompt from the pieces of their tokens."""
    outputs = [_completion_of(index, pieces, sampling, texts) for index, pieces in enumerate(choices)]
    if (count := sampling.prompt_logprobs) is None or (found := choices[0][0].prompt_logprobs) is None:
        return RequestOutput(text, tokens, outputs)
    entries = itertools.chain.from_iterable(PromptNumbers(tokens, found, count, texts).entries())
    numbers = [
        None if entry is None else {token: Logprob(**fields) for token, fields in entry.items()} for entry in entries
    ]
    return RequestOutput(text, tokens, outputs, numbers)


def _completion_of(index: int, pieces: list[Piece], sampling: SamplingParams, texts: TokenTexts) -> CompletionOutput:
    logprobs = [_logprobs_of(piece.token, found, texts) for piece in pieces if (found := piece.logprobs) is not None]
    text, tokens = "".join(piece.text for piece in pieces), [piece.token for piece in pieces]
    reason = pieces[-1].stop_reason(sampling.stop_token_ids or ())
    return CompletionOutput(index, text, tokens, pieces[-1].finish_reason, logprobs or None, reason)


def _logprobs_of(sampled: int, found: pb.Logprobs, texts: TokenTexts) -> dict[int, Logprob]:
    ranks = {token: rank for rank, token in enumerate(found.token, 1)}
    values = dict(zip(found.token, found.logprob, strict=True)) | {sampled: found.sampled}
    return {token: Logprob(value, ranks.get(token), texts.of(token)) for token, value in values.items()}
