"""`ThinkingTracker`: counts the reasoning tokens of an answer, and forces its end when the budget is used up.

The reasoning is where the parser of answers finds it (reasoning.py). The state follows from the tokens alone, as that
of a grammar does, so that a rewind keeps it and a resumed answer builds it again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from orca_master.scheduling.thinking import ThinkingBudget
from orca_master.text.reasoning import BY_TAG, ReasoningParser


class ThinkingTracker:
    """The `Thinking` of a request. `text_of`: returns the text of a token, with one character for each byte.

    `tokens`: those that the answer has. The tags do not count; what comes before a tag does not, either.
    """

    def __init__(self, budget: ThinkingBudget, text_of: Callable[[int], str], tokens: Iterable[int] = ()) -> None:
        self._budget = budget
        self._text_of = text_of
        self._parser = ReasoningParser(budget.form)
        self._num_seen = 0
        """Tokens up to the end of the reasoning."""
        self._num_tokens = 0
        """Since the reasoning has begun, or may have begun without a tag."""
        self._last: tuple[int, ...] = ()
        """Tokens, no more than the end has."""
        self._num_ended = 0
        """How many of `_last` begin the end, forced or not: the rest of it follows."""
        for token in tokens:
            self.accept(token)

    @property
    def is_over(self) -> bool:
        """True if no later token is reasoning."""
        return self._parser.is_over or self._num_ended == len(self._budget.end)

    @property
    def num_free(self) -> int | None:
        """See Thinking. Tokens before a tag count, too: where the reasoning begins is not known before."""
        return None if self.is_over else max(0, self._budget.most - self._num_seen)

    @property
    def forced(self) -> int | None:
        """See Thinking."""
        awaits_tag = self._budget.form == BY_TAG and not self._parser.is_found
        if self.is_over or awaits_tag or self._num_tokens < self._budget.most:
            return None
        return self._budget.end[self._num_ended]

    def accept(self, token: int) -> None:
        """See Thinking. A grammar can delay the forced tokens: the end begins again then."""
        if self.is_over:
            return
        self._num_seen += 1
        had_tag, end = self._parser.has_tag, self._budget.end
        self._parser.feed(self._text_of(token))
        self._num_tokens = 0 if self._parser.has_tag and not had_tag else self._num_tokens + 1
        self._last = (*self._last, token)[-len(end) :]
        self._num_ended = next(size for size in range(len(self._last), -1, -1) if self._ends_with(end[:size]))

    def _ends_with(self, tokens: tuple[int, ...]) -> bool:
        return self._last[len(self._last) - len(tokens) :] == tokens
