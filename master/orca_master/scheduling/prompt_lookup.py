"""`PromptLookup`: drafts the next tokens of a request by what followed the same tokens before. Pure.

Answers often copy: code that is edited, documents that are quoted, tables, repetitions. Where the last NGRAM tokens
have occurred before, in the prompt or in the answer, the tokens that followed them are the draft (prompt lookup
decoding, Saxena, 2023: https://github.com/apoorvumang/prompt-lookup-decoding). No second model is needed.

Each lookup also guesses the next token, whether a draft is computed or not, so `acceptance` is known before the first
draft and falls where the text stops copying. After a right guess the same place goes on; otherwise the latest place is
searched. A search reads the whole context, so in a long one only every so many tokens pay for a search.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence

from orca_master.scheduling.draft_costs import DraftCosts
from orca_master.scheduling.drafter import MOST_ACCEPTANCE, num_likely

NGRAM = 3
"""Tokens that must have occurred before."""
WEIGHT = 1 / 8
"""Weight of the latest guess in `acceptance`."""
FIRST_ACCEPTANCE = 0.5
SEARCHED_BYTES = 2**16
"""Bytes that a token without a right guess pays for: a context of 16,384 tokens is searched after each of them, one of
131,072 tokens after every eighth."""
MOST_PLACES = 64
"""Places among the bytes of the tokens that one lookup examines: only each fourth is the begin of a token."""
_SIZE = 4
"""Bytes of a token."""


class PromptLookup:
    """Implements `Drafter` by the tokens of one request, and how well their repetitions predict the next token."""

    reads_history = False

    def __init__(self, prompt: Sequence[int], generated: Sequence[int] = ()) -> None:
        """Arrays of the type "I", as prompts are, are copied at once, others token by token."""
        self._bytes = bytearray(array("I", prompt).tobytes() + array("I", generated).tobytes())
        self.acceptance = FIRST_ACCEPTANCE
        """Share of the latest guesses that were right, a moving average."""
        self._start: int | None = None
        """Byte at which the continuation begins; None if no search has found one for the last tokens."""
        self._paid_bytes = 0
        """Bytes that tokens have paid for since the last search."""
        self._look_up()

    def append(self, token: int) -> None:
        """See Drafter; compares the token with the guess."""
        code = token.to_bytes(_SIZE, sys.byteorder)
        if self._start is not None:
            right = self._bytes[self._start : self._start + _SIZE] == code
            self.acceptance = min(MOST_ACCEPTANCE, self.acceptance + WEIGHT * (right - self.acceptance))
            self._start = self._start + _SIZE if right else None
        self._bytes += code
        if self._start is None:
            self._paid_bytes += SEARCHED_BYTES
            if self._paid_bytes >= len(self._bytes):
                self._paid_bytes = 0
                self._look_up()

    def draft(self, threshold: float, most: int) -> tuple[int, ...]:
        """See Drafter.

        A continuation that reaches the end of the known tokens goes on with its own tokens, as repetitions do.
        """
        if self._start is None or not (count := num_likely(self.acceptance, threshold, most)):
            return ()
        following = array("I", bytes(self._bytes[self._start : self._start + count * _SIZE]))
        return tuple(following[index % len(following)] for index in range(count))

    def saved(self, count: int, costs: DraftCosts, rows: int) -> float:
        """See Drafter."""
        return costs.gain(count, self.acceptance, rows)[1]

    def wanted(self, costs: DraftCosts, rows: int, most: int, num_left: int) -> int:
        """See Drafter: none, there is no draft model."""
        return 0

    def note_drafting(self) -> None:
        """See Drafter: there is no draft model."""

    def note_end(self) -> None:
        """See Drafter: nothing is learned from it."""

    def receive(self, tokens: Sequence[int]) -> None:
        """See Drafter: without a draft model nothing comes."""

    def rewind(self, num_tokens: int) -> None:
        """See Drafter: workers have nothing of it."""

    def _look_up(self) -> None:
        """Find the latest earlier occurrence of the last NGRAM tokens."""
        size = len(self._bytes)
        last = bytes(self._bytes[-NGRAM * _SIZE :])
        end = size - _SIZE
        for _ in range(MOST_PLACES if size > len(last) else 0):
            place = self._bytes.rfind(last, 0, end)
            if place < 0:
                return
            if place % _SIZE == 0:
                self._start = place + len(last)
                return
            end = place + len(last) - 1
