"""`SamplingFields`: the fields of request bodies that choose an answer's tokens, with vLLM's names and meanings."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, field_validator

from orca_master.bodies.allowed_token_ids import AllowedTokenIds
from orca_master.bodies.bad_words import BadWords
from orca_master.bodies.body import Body, Name, Priority
from orca_master.bodies.lengths import at_most, at_most_characters
from orca_master.bodies.logit_bias import LogitBias
from orca_master.bodies.prompts import TokenId
from orca_master.bodies.structured_outputs import KnownStructuredOutputs

MAX_COUNT = 10**9
"""Maximum number of tokens: above every sequence length, and within the protocol's 32 bits."""
Penalty = Annotated[float, Field(ge=-2, le=2)]
MAX_STOP_STRINGS = 16
MAX_STOP_CHARACTERS = 1024
"""Maximum length of a stop string."""
StopString = Annotated[
    str,
    Field(json_schema_extra={"minLength": 1, "maxLength": MAX_STOP_CHARACTERS}),
    at_most_characters(MAX_STOP_CHARACTERS),
]


class SamplingFields(Body):
    """Fields shared by completions, chat completions and responses."""

    temperature: Annotated[float, Field(ge=0, le=2)] = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    top_k: Annotated[int, Field(ge=-1, le=MAX_COUNT)] = 0
    min_p: Annotated[float, Field(ge=0, le=1)] = 0.0
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    stop: (
        StopString
        | Annotated[list[StopString], Field(max_length=MAX_STOP_STRINGS, fail_fast=True), at_most(MAX_STOP_STRINGS)]
        | None
    ) = None
    stop_token_ids: Annotated[
        list[TokenId], Field(max_length=MAX_STOP_STRINGS, fail_fast=True), at_most(MAX_STOP_STRINGS)
    ] = []
    include_stop_str_in_output: bool = False
    bad_words: BadWords = []
    allowed_token_ids: AllowedTokenIds | None = None
    thinking_token_budget: Annotated[int, Field(ge=-1, le=MAX_COUNT)] | None = None
    presence_penalty: Penalty = 0.0
    frequency_penalty: Penalty = 0.0
    repetition_penalty: Annotated[float, Field(gt=0, le=100)] = 1.0
    logit_bias: LogitBias = {}
    ignore_eos: bool = False
    priority: Priority = 0
    min_tokens: Annotated[int, Field(ge=0, le=MAX_COUNT)] = 0
    skip_special_tokens: bool = True
    cache_salt: Name | None = None
    structured_outputs: KnownStructuredOutputs | None = None

    @field_validator("stop")
    @classmethod
    def _no_empty_stop(cls, stop: str | list[str] | None) -> str | list[str] | None:
        if stop == "" or (isinstance(stop, list) and "" in stop):
            raise ValueError("a stop string must not be empty")
        return stop

    @property
    def stop_strings(self) -> list[str]:
        """`stop` as a list."""
        return [self.stop] if isinstance(self.stop, str) else self.stop or []
