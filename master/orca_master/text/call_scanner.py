"""`CallScanner`: reads one tool call, a JSON object with a name and arguments, while its text is generated.

The arguments are passed on as the model wrote them, character by character: they become a JSON text of the API, and the
client parses them.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from enum import Enum, auto

ARGUMENTS = ("arguments", "parameters")
"""Keys of the arguments: Hermes' and Mistral's, Llama's."""
WHITESPACE = " \t\r\n"


class _Expected(Enum):
    """What comes next between the members of the object."""

    OBJECT = auto()
    KEY = auto()
    COLON = auto()
    VALUE = auto()


class CallScanner:
    """State of the scan of one object. After `ended` or `broken` (no such object) nothing more is consumed.

    With a `name` the object is that of the arguments alone, else its name must be one of `names`; None: any name. Of
    several names or arguments the first counts: the client may have got them when the others come.
    """

    def __init__(self, name: str | None = None, names: Collection[str] | None = None) -> None:
        self.name = name
        self._names = names
        self.ended = False
        self.broken = False
        self._has_arguments = False
        """True once arguments have begun."""
        self._has_all_arguments = False
        self._is_bare = name is not None
        self._expected = _Expected.OBJECT
        self._depth = 0
        self._in_string = self._escaped = False
        self._key = ""
        self._value: list[str] = []
        """Characters of the member's key or value so far."""
        self._arguments: list[str] = []
        """Characters of arguments that `take_arguments` has not returned."""

    def feed(self, text: str, begin: int = 0) -> int:
        """Scan the next characters, those from `begin` on; return how many of them belong to the object."""
        for position in range(begin, len(text)):
            if self.ended or self.broken:
                return position - begin
            self._step(text[position])
        return len(text) - begin

    def take_arguments(self) -> str:
        """Return the characters of the arguments since the last call; {} for an ended object without arguments."""
        if self.ended and not self._has_arguments:
            self._has_arguments = True
            return "{}"
        arguments, self._arguments = "".join(self._arguments), []
        return arguments

    def _step(self, character: str) -> None:
        if self._in_string:
            self._keep(character)
            if self._escaped:
                self._escaped = False
            elif character == "\\":
                self._escaped = True
            elif character == '"':
                self._in_string = False
                if self._expected is _Expected.KEY:
                    self._key, self._expected = self._decoded(), _Expected.COLON
        elif self._depth > 1:
            self._keep(character)
            self._in_string = character == '"'
            self._depth += (character in "{[") - (character in "}]")
            self.ended = self._is_bare and self._depth == 1
        elif character not in WHITESPACE:
            self._step_between(character)

    def _step_between(self, character: str) -> None:
        """Scan a character of the object itself, outside of its keys and of composed values."""
        match self._expected, character:
            case _Expected.OBJECT, "{" if self._is_bare:
                self._depth, self._expected, self._key = 2, _Expected.VALUE, ARGUMENTS[0]
                self._keep(character)
            case _Expected.OBJECT, "{":
                self._depth, self._expected = 1, _Expected.KEY
            case _Expected.KEY, '"':
                self._value, self._in_string = [character], True
            case _Expected.KEY, "}":
                self.ended = True
            case _Expected.COLON, ":":
                self._value, self._expected = [], _Expected.VALUE
            case _Expected.VALUE, "," | "}" if self._value:
                self._end_value()
                self._expected = _Expected.KEY
                self.ended = character == "}" and not self.broken
            case _Expected.VALUE, _ if character not in ",}]:" and (not self._value or self._value[0] not in "{["):
                self._keep(character)
                self._in_string = character == '"'
                self._depth += character in "{["
            case _:
                self.broken = True
        if self.ended and self.name is None:
            self.ended, self.broken = False, True

    def _keep(self, character: str) -> None:
        self._value.append(character)
        is_argument = self._expected is _Expected.VALUE and self._key in ARGUMENTS and not self._has_all_arguments
        if is_argument and self._value[0] == "{":
            self._arguments.append(character)
            self._has_arguments = True

    def _end_value(self) -> None:
        if self._key == "name":
            name = self._decoded() if self._value[0] == '"' else None
            if name is None or not (self._names is None or name in self._names):
                self.broken = True
            elif self.name is None:
                self.name = name
        elif self._key in ARGUMENTS and not self._has_all_arguments:
            self._has_all_arguments = True
            if self._value[0] != "{":
                # Some models write the arguments as a text that contains JSON, or null.
                text = self._decoded() if self._value[0] == '"' else "".join(self._value)
                self._arguments.append("{}" if text == "null" else text)
                self._has_arguments = True

    def _decoded(self) -> str:
        """Return the string whose JSON the value is; the scan breaks if there is none that can be sent as UTF-8."""
        try:
            text = str(json.loads("".join(self._value), strict=False))
            text.encode()
        except ValueError:  # also UnicodeEncodeError: a lone surrogate
            self.broken = True
            return ""
        return text
