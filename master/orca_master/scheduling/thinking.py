"""`ThinkingBudget`: the most reasoning tokens of an answer; `Thinking`: the reasoning of one answer so far."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class ThinkingBudget:
    """`most`: reasoning tokens without its tags; `end`: the tokens of the end of the reasoning, at least one.

    `form`: format of the reasoning after the prompt (text/reasoning.py).
    """

    most: int
    form: str
    end: tuple[int, ...]


class Thinking(Protocol):
    """The tokens of one answer so far, in its reasoning. Used on the engine's loop."""

    @property
    def num_free(self) -> int | None:
        """Number of next tokens that are certainly not forced; None: no further token is."""

    @property
    def forced(self) -> int | None:
        """The only next token, because the budget is used up; None for any."""

    def accept(self, token: int) -> None:
        """Append a token."""
