"""`Drafter`: what expects the next tokens of a request: repetitions (prompt_lookup.py) or a draft model. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

from orca_master.scheduling.draft_costs import DraftCosts

MOST_ACCEPTANCE = 0.98
"""Assumed at most: a draft ends, however well earlier guesses did."""


class Drafter(Protocol):
    """Learns each token of one request, and drafts those that may follow."""

    @property
    def reads_history(self) -> bool:
        """True if workers need all tokens of the request, also those of shared blocks."""

    def append(self, token: int) -> None:
        """Add the next token of the request."""

    def draft(self, threshold: float, most: int) -> tuple[int, ...]:
        """Return up to `most` tokens, each expected to be accepted with a probability of `threshold` at least."""

    def saved(self, count: int, costs: DraftCosts, rows: int) -> float:
        """Return the time that a draft of `count` tokens is expected to save, in the unit of
        `costs`; infinity for a draft that the draft model has computed, from which it also learns."""

    def wanted(self, costs: DraftCosts, rows: int, most: int, num_left: int) -> int:
        """Return how many tokens, up to `most`, the draft model is to draft beside `rows` rows.

        `num_left`: tokens that the request may still generate.
        """

    def note_drafting(self) -> None:
        """Note that an iteration has been sent at whose end the draft model is to draft."""

    def note_end(self) -> None:
        """Note the end of the request's answer."""

    def receive(self, tokens: Sequence[int]) -> None:
        """Keep what the draft model has drafted after the last token; none: it cannot compute so long a sequence."""

    def rewind(self, num_tokens: int) -> None:
        """Note that the workers have lost what they computed of the request's `num_tokens` tokens."""


def num_likely(acceptance: float, threshold: float, most: int) -> int:
    """Return how many tokens in a row, up to `most`, are accepted with a probability of `threshold` at least.

    Each is accepted with the probability `acceptance` if the one before it is.
    """
    if acceptance <= threshold or most < 1:
        return 0
    return min(most, int(math.log(threshold) / math.log(min(acceptance, MOST_ACCEPTANCE))))
