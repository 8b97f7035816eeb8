"""`AllowedTokenIds`: the field `allowed_token_ids` of request bodies, the only tokens of an answer, as in vLLM."""

from __future__ import annotations

from array import array
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer

from orca_master.bodies.lengths import at_most
from orca_master.bodies.prompts import TokenId

MAX_ALLOWED_TOKENS = 1 << 18
"""Maximum number of ids: more than the vocabularies of common models have."""


def _listed(tokens: Any) -> Any:
    """Return the value of another body as a list again; refuse an empty one."""
    if isinstance(tokens, list) and not tokens:
        raise ValueError("no token would be left: leave the field out to allow every token")
    return tokens.tolist() if isinstance(tokens, array) else tokens


AllowedTokenIds = Annotated[
    list[TokenId],
    Field(min_length=1, max_length=MAX_ALLOWED_TOKENS, fail_fast=True),
    BeforeValidator(_listed),
    at_most(MAX_ALLOWED_TOKENS),
    AfterValidator(lambda tokens: array("I", tokens)),
    PlainSerializer(list),
]
"""The value is an array of 4 bytes per id, where a list takes 36: the body lives as long as its request."""
