"""`CompiledGrammar`: a grammar in llguidance's form, from which the matchers of its answers are copied.

Copies share the states of llguidance's lexer, which it adds as answers need them and never removes: some nine for each
character of a string with a maxLength. Their number is limited (grammar_process.py). When they are used up, later
answers get new ones, and each running answer goes on with states of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from weakref import WeakSet

from llguidance import LLMatcher

from orca_master.text.json_spaces import JsonSpaces

USED_UP = ("too many states", "too many expressions")
"""Parts of llguidance's errors when its lexer needs more states than the limit."""
MAX_OWN = 16
"""Maximum number of running answers with states of their own."""


class OwnStates:
    """The running answers to all grammars that have states of their own, each up to the limit of a grammar."""

    def __init__(self) -> None:
        self._answers: WeakSet[object] = WeakSet()

    def take(self, answer: object) -> bool:
        """Return True if `answer` has a place, which its deletion frees."""
        if answer not in self._answers and len(self._answers) >= MAX_OWN:
            return False
        self._answers.add(answer)
        return True


class CompiledGrammar:
    """Copies matchers. `compile` returns a new one, in its error state for a grammar that cannot be compiled.

    `spaces`: bounds the whitespace of a grammar with JSON; None for other grammars.
    """

    def __init__(self, compile: Callable[[], LLMatcher], own: OwnStates, spaces: JsonSpaces | None = None) -> None:
        self.spaces = spaces
        self._compile = compile
        self._own = own
        self._source = compile()
        self.generation = 0
        """Number of times that the shared states were replaced."""

    @property
    def error(self) -> str:
        """Why the grammar cannot be compiled, "" if it can."""
        return self._source.get_error() if self._source.is_error() else ""

    def matcher(self) -> LLMatcher:
        """Return the matcher of an answer without tokens."""
        return self._source.deep_copy()

    def own_matcher(self, answer: object, generation: int) -> LLMatcher | None:
        """Return a matcher with states of its own; None if too many answers have one.

        `generation`: of the shared states that are used up. Later answers share new ones.
        """
        if generation == self.generation:
            self._source = self._compile()
            self.generation += 1
        return self._compile() if self._own.take(answer) else None


def is_used_up(matcher: LLMatcher) -> bool:
    """Return True if the matcher failed because the states of its lexer do not suffice."""
    return matcher.is_error() and any(text in matcher.get_error() for text in USED_UP)
