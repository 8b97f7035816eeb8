"""What `LLM.generate` takes and returns."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import ValidationError

from orca_master.bodies.openai_requests import CompletionRequest
from orca_master.bodies.validation import described
from orca_master.endpoint.choice_run import Piece


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Sampling parameters, with the names, meanings and bounds of the HTTP API's fields."""

    n: int = 1
    max_tokens: int = 16
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: list[str] = field(default_factory=list)
    stop_token_ids: list[int] = field(default_factory=list)
    include_stop_str_in_output: bool = False
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] = field(default_factory=dict)
    ignore_eos: bool = False
    min_tokens: int = 0
    skip_special_tokens: bool = True
    structured_outputs: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class CompletionOutput:
    """One choice of a completion."""

    index: int
    text: str
    token_ids: list[int]
    finish_reason: Literal["stop", "length"] | None


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """The completions of one prompt."""

    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]


def request_of(sampling: SamplingParams, model: str | None) -> CompletionRequest:
    """Return a request body with the parameters, checked like a request over HTTP; raise RequestError."""
    values = {name: getattr(sampling, name) for name in SamplingParams.__slots__}
    values["logit_bias"] = {str(token): bias for token, bias in sampling.logit_bias.items()}
    try:
        return CompletionRequest(prompt=[0], model=model, **values)
    except ValidationError as error:
        raise described(error.errors()) from error


def output_of(index: int, pieces: list[Piece]) -> CompletionOutput:
    text = "".join(piece.text for piece in pieces)
    return CompletionOutput(index, text, [piece.token for piece in pieces], pieces[-1].finish_reason)
