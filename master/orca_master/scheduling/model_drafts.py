"""`ModelDrafts`: the tokens of one request that the draft model expects (the workers' draft_model.py). Pure.

The draft model drafts at the end of an iteration, for the next one. How many tokens are worth its time depends on how
many were accepted lately, and at first also on how many tokens of the request the draft model must catch up on. Where
drafts do not pay, a token of some request is drafted now and then, so that a change is noticed: a probe. Where each
token to catch up on takes more than a hundredth of an iteration, long answers are probed near their beginning only.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from orca_contract.drafting import MOST_CAUGHT_UP

from orca_master.scheduling.draft_costs import DraftCosts, iterations_behind
from orca_master.scheduling.drafter import MOST_ACCEPTANCE, num_likely

WEIGHT = 1 / 8
"""Weight of the latest guess in `ModelDrafts.acceptance`."""
COMMON_WEIGHT = 1 / 64
"""Weight of the latest guess in `Guesses.acceptance`."""
LENGTH_WEIGHT = 1 / 16
"""Weight of the latest answer in `Guesses.length`."""
FIRST_ACCEPTANCE = 0.7
"""Before any guess."""
PROBE_INTERVAL = 251
"""Tokens of all requests without a guess after which one of them may be probed. A prime: a multiple of the length of
all answers would always choose a request that has just ended."""
PROBE_SHARE = 0.01
"""What a probe costs at most, of the time of the tokens without a guess since the latest probe."""


class Guesses:
    """The guesses of all requests, and the lengths of their answers.

    `acceptance`: the share of the latest guesses that were right; a request begins with it.
    """

    def __init__(self) -> None:
        self.acceptance = FIRST_ACCEPTANCE
        self.chosen: ModelDrafts | None = None
        """The request that may be probed next."""
        self.num_unguessed = 0
        """Tokens without a guess, of all requests, since the latest probe."""
        self.length: float | None = None
        """Tokens of an answer, a moving average; None before the first end of an answer."""

    def note(self, right: bool) -> None:
        """Add a guess."""
        self.acceptance += COMMON_WEIGHT * (right - self.acceptance)

    def note_probe(self) -> None:
        """Note the beginning of a probe: for a while, no request is chosen."""
        self.chosen, self.num_unguessed = None, 0

    def note_length(self, num_tokens: int) -> None:
        """Add the length of an answer that has ended."""
        self.length = num_tokens if self.length is None else self.length + LENGTH_WEIGHT * (num_tokens - self.length)

    def note_unguessed(self, request: ModelDrafts) -> None:
        """Note a token without a guess; `request` may be chosen, in place of an earlier one that may have ended."""
        self.num_unguessed += 1
        if self.num_unguessed % PROBE_INTERVAL == 0:
            self.chosen = request


class ModelDrafts:
    """Implements `Drafter` for a request of `num_tokens` tokens, of which `num_generated` belong to its answer."""

    reads_history = True

    def __init__(self, guesses: Guesses, num_tokens: int, num_generated: int = 0) -> None:
        self.acceptance = guesses.acceptance
        """Share of the latest guesses that were right, a moving average."""
        self.num_earlier = num_tokens
        """Tokens that the workers had not computed at the admission, until the draft model has computed them."""
        self._num_later = 0
        """Tokens since the admission, or since the latest draft."""
        self._num_asked = 0
        """Of these and the earlier ones, those that the draft model has been asked to catch up on."""
        self._num_generated = num_generated
        self._guesses = guesses
        self._drafted: tuple[int, ...] = ()
        self._is_promising = False
        """Whether the latest guess was right."""
        self._is_too_long = False
        self._is_probed = False
        """Whether the draft model catches up for a probe."""

    def append(self, token: int) -> None:
        """See Drafter; compares the token with the guess."""
        self._num_later += 1
        self._num_generated += 1
        if not self._drafted:
            if not self._is_too_long:
                self._guesses.note_unguessed(self)
            return
        right = self._is_promising = self._drafted[0] == token
        self._drafted = self._drafted[1:] if right else ()
        self.acceptance += WEIGHT * (right - self.acceptance)
        self._guesses.note(right)

    def draft(self, threshold: float, most: int) -> tuple[int, ...]:
        """See Drafter. The first token of a draft that was wanted is computed: without it nothing would be learned."""
        return self._drafted[: max(min(1, most), num_likely(self.acceptance, threshold, most))]

    def saved(self, count: int, costs: DraftCosts, rows: int) -> float:
        """See Drafter: the draft model has computed the draft, and without it nothing would be learned."""
        return math.inf

    def wanted(self, costs: DraftCosts, rows: int, most: int, num_left: int) -> int:
        """See Drafter."""
        if self._is_too_long:
            return 0
        if count := self._num_paying(self.acceptance, costs, rows, most, num_left):
            return count
        if self._is_promising and self._num_paying(MOST_ACCEPTANCE, costs, rows, most, num_left):
            return 1
        is_affordable = costs.probe_price(self._num_behind, rows) <= PROBE_SHARE * self._guesses.num_unguessed
        begins = self._guesses.chosen is self and is_affordable and not self._drafted
        return min(1, most) if self._is_probed or begins else 0

    def note_drafting(self) -> None:
        """See Drafter. A probe is paid for when it begins: the request may end before the draft model has caught up."""
        self._num_asked += min(MOST_CAUGHT_UP, self._num_behind)
        if self._guesses.chosen is self:
            self._is_probed = True
            self._guesses.note_probe()

    def note_end(self) -> None:
        """See Drafter."""
        self._guesses.note_length(self._num_generated)

    def receive(self, tokens: Sequence[int]) -> None:
        """See Drafter."""
        self._drafted, self._is_too_long, self._is_probed = tuple(tokens), not tokens, False
        self.num_earlier = self._num_later = self._num_asked = 0

    def rewind(self, num_tokens: int) -> None:
        """See Drafter."""
        self._drafted, self._is_probed = (), False
        self.num_earlier, self._num_later, self._num_asked = num_tokens, 0, 0

    def _num_paying(self, acceptance: float, costs: DraftCosts, rows: int, most: int, num_left: int) -> int:
        """Return how many drafted tokens pay, up to `most`, if each is accepted with the probability `acceptance`."""
        if not (count := num_likely(acceptance, costs.least_acceptance_of_step(rows), most)):
            return 0
        num_accepted, saved = costs.gain(count, acceptance, rows)
        saved -= costs.drafting_time(count, rows) / rows  # as if all rows were drafted on
        num_before = iterations_behind(self._num_behind)  # the first draft, a token each
        num_iterations = max(0.0, self._num_expected(num_left) - num_before) / (1 + num_accepted)
        catching_up = self._num_behind * costs.caught_up + num_before * costs.look_ahead / rows
        return count if saved > 0 and saved * num_iterations > catching_up else 0

    def _num_expected(self, num_left: int) -> float:
        """Return how many tokens the answer is expected to have yet, up to `num_left`.

        As many as up to the mean length of other answers, or as many as it has, whichever is more.
        """
        if self._guesses.length is None:
            return num_left
        return min(num_left, max(self._guesses.length - self._num_generated, self._num_generated))

    @property
    def _num_behind(self) -> int:
        """Tokens that the draft model must still catch up on, if it computes all that it has been asked to."""
        return self.num_earlier + self._num_later - self._num_asked
