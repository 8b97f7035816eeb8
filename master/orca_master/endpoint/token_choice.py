"""The fields of a request that choose the tokens of its answers: their checks, and the engine's sampling parameters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from orca_master.bodies.openai_requests import GenerationRequest
from orca_master.errors import RequestError
from orca_master.scheduling.allowed_tokens import AllowedTokens
from orca_master.scheduling.sampling_parameters import SamplingParameters
from orca_master.text.tokenizer import TextCodec

_COMMON_FIELDS = {field.name for field in fields(SamplingParameters)} & set(GenerationRequest.model_fields) - {
    "seed", "prompt_logprobs"
}  # fmt: skip
"""Sampling parameters with the same name and value in the body."""
LEAST_TEMPERATURE = 1e-5
"""Below it a request is greedy: logits over its temperature could exceed the workers' number type."""


def check_token_ids(field: str, tokens: Sequence[int], vocabulary: int) -> None:
    """Raise RequestError if a token id of a request's `field` is not in the vocabulary."""
    if min(tokens, default=0) < 0:
        raise RequestError(f"{field}: token id {min(tokens)} is negative", field)
    if max(tokens, default=0) >= vocabulary:
        raise RequestError(f"{field}: token id {max(tokens)} is not below the vocabulary size {vocabulary}", field)


def check_min_tokens(body: GenerationRequest, max_tokens: int, origin: str) -> None:
    """Raise RequestError if `min_tokens` exceeds the length of an answer, which is from `origin`."""
    if body.min_tokens > max_tokens:
        raise RequestError(f"min_tokens: {body.min_tokens} exceeds {origin}, {max_tokens}", "min_tokens")


def check_tokens(body: GenerationRequest, vocabulary: int, stops: frozenset[int]) -> None:
    """Raise RequestError for token ids that are not in the vocabulary, or that `min_tokens` leaves no choice of.

    `stops`: the tokens that end the answer.
    """
    for field, tokens in (
        ("stop_token_ids", body.stop_token_ids),
        ("allowed_token_ids", body.allowed_token_ids or ()),
        ("logit_bias", [int(token) for token in body.logit_bias]),
    ):
        check_token_ids(field, tokens, vocabulary)
    if body.min_tokens and body.allowed_token_ids and stops.issuperset(body.allowed_token_ids):
        raise RequestError(
            f"allowed_token_ids: each of them ends the answer, and min_tokens is {body.min_tokens}: allow another one",
            "allowed_token_ids",
        )


def stops_of(body: GenerationRequest, codec: TextCodec) -> frozenset[int]:
    """Return the tokens that end an answer."""
    return frozenset(body.stop_token_ids) | (frozenset() if body.ignore_eos else codec.stop_token_ids)


def sampling_values(body: GenerationRequest, codec: TextCodec) -> dict[str, Any]:
    """Return the values of SamplingParameters that all choices of a request share; raise RequestError."""
    values = {name: getattr(body, name) for name in _COMMON_FIELDS}
    if body.temperature < LEAST_TEMPERATURE:
        values["temperature"] = 0.0
    return values | {
        "top_k": max(0, body.top_k),
        "logit_bias": tuple((int(token), value) for token, value in body.logit_bias.items()),
        "bad_words": codec.bad_words(body.bad_words),
        "allowed_token_ids": AllowedTokens.of(body.allowed_token_ids or ()),
    }
