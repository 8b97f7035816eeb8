"""`AllowedTokenIds`: the field `allowed_token_ids` of request bodies, the only tokens of an answer, as in vLLM."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from orca_master.bodies.lengths import at_most
from orca_master.bodies.prompts import TokenId

MAX_ALLOWED_TOKENS = 1 << 18
"""Maximum number of ids: more than the vocabularies of common models have."""


def _not_empty(tokens: Any) -> Any:
    if tokens == []:
        raise ValueError("no token would be left: leave the field out to allow every token")
    return tokens


AllowedTokenIds = Annotated[
    list[TokenId],
    Field(min_length=1, max_length=MAX_ALLOWED_TOKENS, fail_fast=True),
    BeforeValidator(_not_empty),
    at_most(MAX_ALLOWED_TOKENS),
]
