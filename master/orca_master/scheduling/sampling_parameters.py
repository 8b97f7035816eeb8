"""`SamplingParameters`: the sampling parameters of a request, their bounds, and their protobuf conversion.

The values come from the endpoint (token_choice.py copies fields of the same name) and go as `Sampling` of
protos/engine.proto to the workers (orca_worker/sampling.py). A new parameter needs a field in the request body
(sampling_fields.py), in `SamplingParams` (llm_messages.py), in this class and in that message, and its use in the
workers.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from orca_protos import engine_pb2 as pb

from orca_master.errors import RequestError
from orca_master.scheduling.allowed_tokens import NO_LIMIT, AllowedTokens
from orca_master.scheduling.bad_words import NO_BAD_WORDS, BadWordTokens

SMALLEST_FLOAT, LARGEST_FLOAT = 2.0**-126, (2 - 2**-23) * 2.0**127
"""Smallest and largest positive normal float32, the workers' number type."""
MAX_LOGPROBS = 20


class ValueOutOfRangeError(ValueError):
    """A value that its protobuf field cannot hold; `field` is the name of the request parameter."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field


def _bounded(default: Any, least: float, most: float, name: str = "") -> Any:
    """Return a field with bounds that `check` applies; `name` is the name in the API if that differs."""
    return dataclasses.field(default=default, metadata={"bounds": (least, most), "name": name})


@dataclass(frozen=True, slots=True)
class SamplingParameters:
    """Values of `Sampling` in protos/engine.proto. `logprobs` and `prompt_logprobs` None return no logprobs."""

    temperature: float = _bounded(0.0, 0, LARGEST_FLOAT)
    top_p: float = _bounded(1.0, SMALLEST_FLOAT, 1)
    min_p: float = _bounded(0.0, 0, 1)
    presence_penalty: float = _bounded(0.0, -LARGEST_FLOAT, LARGEST_FLOAT)
    frequency_penalty: float = _bounded(0.0, -LARGEST_FLOAT, LARGEST_FLOAT)
    repetition_penalty: float = _bounded(1.0, SMALLEST_FLOAT, LARGEST_FLOAT)
    logit_bias: tuple[tuple[int, float], ...] = ()
    seed: int = _bounded(0, 0, 2**64 - 1)
    choice: int = _bounded(0, 0, 2**32 - 1, "n")
    top_k: int = _bounded(0, 0, 2**32 - 1)
    min_tokens: int = _bounded(0, 0, 2**32 - 1)
    logprobs: int | None = _bounded(None, 0, MAX_LOGPROBS)
    prompt_logprobs: int | None = _bounded(None, 0, MAX_LOGPROBS)
    bad_words: BadWordTokens = NO_BAD_WORDS
    allowed_token_ids: AllowedTokens = NO_LIMIT

    @property
    def reads_history(self) -> bool:
        """True if the logits are changed depending on the tokens before (orca_worker/logit_processing.py)."""
        penalties = self.presence_penalty or self.frequency_penalty or self.repetition_penalty != 1
        return bool(penalties or self.min_tokens)

    @property
    def is_masked(self) -> bool:
        """True if the master limits the tokens that may be sampled (engine/token_masks.py)."""
        return bool(self.bad_words or self.allowed_token_ids)

    def check(self) -> None:
        """Raise RequestError for a value out of its bounds. Token ids are not checked."""
        bounds = [(_FIELDS[name], getattr(self, name), *_BOUNDS[name]) for name in _BOUNDS]
        bounds += [("logit_bias", value, -LARGEST_FLOAT, LARGEST_FLOAT) for _, value in self.logit_bias]
        for field, value, least, most in bounds:
            if value is not None and not least <= value <= most:  # also true for NaN
                raise RequestError(f"{field}: {value} is not between {least} and {most}", field)
        if not all(self.bad_words):
            raise RequestError("bad_words: a word has no tokens", "bad_words")
        if self.allowed_token_ids and self.allowed_token_ids.largest < 0:
            raise RequestError("allowed_token_ids: no token is allowed", "allowed_token_ids")

    def fill(self, message: pb.Sampling) -> None:
        """Write what workers need into an empty message: all values but those that masks contain.

        Raises ValueOutOfRangeError if a field cannot hold its value.
        """
        name, value = "logit_bias", 0
        try:
            if self.logit_bias:
                tokens, biases = zip(*self.logit_bias, strict=True)
                value = next((token for token in tokens if not 0 <= token < 2**32), 0)
                message.logit_bias.token.extend(tokens)
                message.logit_bias.value.extend(biases)
            for name in _BOUNDS:
                value = getattr(self, name)
                if value is not None:
                    setattr(message, name, value)
        except ValueError as error:
            most = 2**64 - 1 if name in _WIDE else 2**32 - 1
            raise ValueOutOfRangeError(_FIELDS[name], f"{value} is not between 0 and {most}") from error

    def fill_all(self, message: pb.Sampling) -> None:
        """As `fill`, for another process of the master: with `bad_words` and `allowed_token_ids`."""
        self.fill(message)
        message.allowed_token_ids = self.allowed_token_ids
        try:
            message.bad_words.extend(pb.TokenSequence(token=word) for word in self.bad_words)
        except ValueError as error:
            raise ValueOutOfRangeError("bad_words", f"a token id is not between 0 and {2**32 - 1}") from error


_BOUNDS: dict[str, tuple[float, float]] = {
    field.name: field.metadata["bounds"] for field in dataclasses.fields(SamplingParameters) if field.metadata
}
_FIELDS: dict[str, str] = {
    field.name: field.metadata.get("name") or field.name for field in dataclasses.fields(SamplingParameters)
}
"""Field name → name in the API."""
_WIDE = {field.name for field in pb.Sampling.DESCRIPTOR.fields if field.type == FieldDescriptor.TYPE_UINT64}


def sampling_of(message: pb.Sampling) -> SamplingParameters:
    """Return the values of a message, unchecked; raise ValueError if biases and tokens differ in number."""
    bias = message.logit_bias
    if len(bias.token) != len(bias.value):
        raise ValueError(f"a logit bias of {len(bias.token)} tokens and {len(bias.value)} values")
    values = {name: getattr(message, name) for name in _BOUNDS}
    values |= {name: None for name in ("logprobs", "prompt_logprobs") if not message.HasField(name)}
    bad_words = BadWordTokens(tuple(word.token) for word in message.bad_words)
    biases = tuple(zip(bias.token, bias.value, strict=True))
    allowed = AllowedTokens(message.allowed_token_ids)
    return SamplingParameters(**values, logit_bias=biases, bad_words=bad_words, allowed_token_ids=allowed)
