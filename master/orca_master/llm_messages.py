"""What `LLM.generate` takes and returns, with vLLM's names."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypedDict

from pydantic import ValidationError

from orca_master.bodies.openai_requests import CompletionRequest
from orca_master.bodies.validation import described
from orca_master.endpoint.choice_run import Piece
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
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] | None = None
    logprobs: int | None = None
    """Likely tokens beside each sampled one whose log probabilities are returned; None: no log probabilities."""
    ignore_eos: bool = False
    min_tokens: int = 0
    skip_special_tokens: bool = True
    structured_outputs: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Logprob:
    """The log probability of a token."""

    logprob: float


@dataclass(frozen=True, slots=True)
class CompletionOutput:
    """One choice of a completion."""

    index: int
    text: str
    token_ids: list[int]
    finish_reason: Literal["stop", "length"] | None
    logprobs: list[dict[int, Logprob]] | None = None
    """For each token, by token id: those of the likely tokens and of the sampled one. None unless requested."""


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """The completions of one prompt; `prompt`: its text, None for token ids."""

    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]


def text_and_tokens(prompt: Prompt, encode: Callable[[str], list[int]]) -> tuple[str | None, list[int]]:
    """Return a prompt's text, None without one, and its token ids; raise RequestError."""
    fields: Mapping[str, Any] = prompt if isinstance(prompt, Mapping) else {}
    text: Any = prompt if isinstance(prompt, str) else fields.get("prompt")
    ids = fields.get("prompt_token_ids") if isinstance(prompt, str | Mapping) else prompt
    try:
        if fields.keys() - PromptDictionary.__annotations__.keys() or (text is None and ids is None):
            raise TypeError
        return text, encode(text) if ids is None else array("I", ids).tolist()
    except (TypeError, OverflowError):
        raise RequestError(
            "prompts: each is a text, a list of token ids, or a dictionary with prompt or prompt_token_ids", "prompts"
        ) from None


def request_of(sampling: SamplingParams, model: str | None) -> CompletionRequest:
    """Return a request body with the parameters, checked like a request over HTTP; raise RequestError."""
    values = {name: getattr(sampling, name) for name in SamplingParams.__slots__}
    values["logit_bias"] = {str(token): bias for token, bias in (sampling.logit_bias or {}).items()}
    try:
        return CompletionRequest(prompt=[0], model=model, **values)
    except ValidationError as error:
        raise described(error.errors()) from error


def output_of(index: int, pieces: list[Piece]) -> CompletionOutput:
    """Return a choice from the pieces of its tokens."""
    logprobs = [
        dict(zip(found.token, map(Logprob, found.logprob), strict=True)) | {piece.token: Logprob(found.sampled)}
        for piece in pieces
        if (found := piece.logprobs) is not None
    ]
    text, tokens = "".join(piece.text for piece in pieces), [piece.token for piece in pieces]
    return CompletionOutput(index, text, tokens, pieces[-1].finish_reason, logprobs or None)
