"""`CompiledGrammar`: a grammar in llguidance's form, from which the matchers of its answers are copied.

Copies share the states of llguidance's lexer, which it adds as answers need them and never removes: some nine for each
character of a string with a maxLength. Their number is limited (grammar_process.py), so an answer to which the states
do not suffice goes on with new ones.
"""

from __future__ import annotations

from collections.abc import Callable

from llguidance import LLMatcher

STATES_USED_UP = "too many states"
"""Part of llguidance's error when its lexer needs more states than the limit."""


class CompiledGrammar:
    """Copies matchers. `compile` returns a new one, in its error state for a grammar that cannot be compiled."""

    def __init__(self, compile: Callable[[], LLMatcher]) -> None:
        self._compile = compile
        self._source = compile()
        self.generation = 0
        """Number of times that the states were renewed."""

    @property
    def error(self) -> str:
        """Why the grammar cannot be compiled, "" if it can."""
        return self._source.get_error() if self._source.is_error() else ""

    def matcher(self) -> LLMatcher:
        """Return the matcher of an answer without tokens."""
        return self._source.deep_copy()

    def renew(self, generation: int) -> None:
        """Use new states from now on, unless those of `generation` have been replaced already."""
        if generation == self.generation:
            self._source = self._compile()
            self.generation += 1
