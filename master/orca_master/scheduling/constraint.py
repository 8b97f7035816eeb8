"""`Grammar`: what an answer must match, as the client sent it; `Constraint`: the state of one answer in its grammar."""

from __future__ import annotations

import dataclasses
import enum
from typing import Protocol

MAX_GRAMMAR_BYTES = 128 << 10
"""Maximum length of a grammar's text in UTF-8."""

NOUNS = {"json": "schema", "regex": "regular expression", "choice": "list", "calls": "list of functions"}


class GrammarKind(enum.Enum):
    """Language of a grammar's text."""

    JSON = "json"
    """A JSON schema."""
    REGEX = "regex"
    CHOICE = "choice"
    """A list of strings as JSON."""
    GRAMMAR = "grammar"
    """A context-free grammar in Lark's or GBNF's syntax."""
    CALLS = "calls"
    """Tool calls, as text/call_grammar.py has them."""

    @property
    def noun(self) -> str:
        """The name in errors."""
        return NOUNS.get(self.value, "grammar")


@dataclasses.dataclass(frozen=True, slots=True)
class Grammar:
    """A grammar of at most MAX_GRAMMAR_BYTES. `field`: the field of the client's request, which errors name.

    `owner`: digest of the client's API key, "" without keys. Grammars of different owners share a compiled one.
    `reasoning`: format of the reasoning before the grammar (text/reasoning.py), "" if the grammar has the first token.
    """

    kind: GrammarKind
    text: str
    field: str = dataclasses.field(default="structured_outputs", compare=False)
    owner: str = dataclasses.field(default="", compare=False)
    reasoning: str = ""


class Constraint(Protocol):
    """The tokens of one answer so far, in its grammar. Used on the engine's loop, and by TokenMasks on its thread."""

    error: str
    """Why the grammar allows no further token although it is not complete; "" if it allows some."""

    @property
    def is_complete(self) -> bool:
        """True if no token but an end of sequence may follow."""

    def accept(self, token: int) -> None:
        """Append a token that the mask allowed; set `error` if the grammar does not."""
