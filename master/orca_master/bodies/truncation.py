"""Types of the fields `truncate_prompt_tokens` and `truncation_side`, with vLLM's names and meanings."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

WHAT_FITS = -1
"""As `truncate_prompt_tokens`: all tokens that fit beside the answer."""
MAX_TOKENS = 2**31 - 1


def _check(count: int) -> int:
    if count == 0:
        raise ValueError("0 tokens are no prompt: send at least 1, or -1 for all tokens that fit")
    return count


PromptTokens = Annotated[
    int, Field(ge=WHAT_FITS, le=MAX_TOKENS, json_schema_extra={"not": {"const": 0}}), AfterValidator(_check)
]
"""Most tokens that remain of a prompt."""
TruncationSide = Literal["left", "right"]
"""Side of a prompt from which tokens are removed."""
