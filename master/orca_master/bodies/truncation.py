"""The fields `truncate_prompt_tokens` and `truncation_side`, with vLLM's names and meanings; how they cut prompts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from orca_master.bodies.sampling_fields import MAX_COUNT
from orca_master.errors import RequestError

WHAT_FITS = -1
"""As `truncate_prompt_tokens`: all tokens that fit beside the answer."""


def _check(count: int) -> int:
    if count == 0:
        raise ValueError("0 tokens are no prompt: send at least 1, or -1 for all tokens that fit")
    return count


PromptTokens = Annotated[
    int, Field(ge=WHAT_FITS, le=MAX_COUNT, json_schema_extra={"not": {"const": 0}}), AfterValidator(_check)
]
"""Most tokens that remain of a prompt."""
TruncationSide = Literal["left", "right"]
"""Side of a prompt from which tokens are removed."""


@dataclass(frozen=True, slots=True)
class Truncation:
    """At most `most` tokens of a prompt remain, at least 1; the others are removed from `side`."""

    most: int
    side: TruncationSide

    def cut(self, tokens: Sequence[int], num_before: int = 0, num_after: int = 0) -> Sequence[int]:
        """Return the tokens that remain.

        `num_before`, `num_after`: special tokens at the beginning and at the end that the tokenizer has added to a
        text: they remain, as with the tokenizers that vLLM uses.
        """
        if len(tokens) <= self.most:
            return tokens
        end = len(tokens) - num_after
        room = max(0, self.most - num_before - num_after)
        first, last = (num_before, num_before + room) if self.side == "right" else (end - room, end)
        kept = [*tokens[:num_before], *tokens[first:last], *tokens[end:]]
        return kept[: self.most] if self.side == "right" else kept[len(kept) - self.most :]


def truncation_of(wanted: int, side: TruncationSide, longest: int, num_answer: int = 0) -> Truncation:
    """Return how the prompts of a request with `truncate_prompt_tokens` = `wanted` are cut.

    `longest`: tokens of the longest prompt, an answer of `num_answer` tokens included. Raises RequestError if the
    answer would have no room beside so many tokens, but not if it has none at all: its own length is wrong then.
    """
    if num_answer < longest < wanted + num_answer:
        answer = f" + {num_answer} for the answer" if num_answer else ""
        raise RequestError(
            f"truncate_prompt_tokens: {wanted} tokens of the prompt{answer}, at most {longest} are possible: "
            "send fewer, or -1 for all that fit",
            "truncate_prompt_tokens",
        )
    return Truncation(max(1, longest - num_answer) if wanted == WHAT_FITS else wanted, side)
