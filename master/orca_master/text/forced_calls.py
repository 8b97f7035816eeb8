"""`ListParser` and `ArgumentsParser`: read an answer that a grammar forces to be calls, while it is generated.

The answer is in one of the forms of call_grammar.py: a list of {"name", "parameters"}, or one function's arguments.
"""

from __future__ import annotations

from orca_master.text.call_scanner import WHITESPACE, CallScanner
from orca_master.text.tool_calls import CallDelta, Parsed

BETWEEN_CALLS = f"{WHITESPACE}[,"


class ListParser:
    """State of one answer that is a list of calls."""

    def __init__(self) -> None:
        self._scanner: CallScanner | None = None
        """Of the current call, None between calls."""
        self._has_name = False
        self._num_calls = 0
        self.ends_with_calls = False
        """True once the list has ended: after that the answer has ended, too."""

    @property
    def is_within_call(self) -> bool:
        """See CallParser."""
        return self._scanner is not None and self._has_name

    def feed(self, text: str, last: bool = False) -> Parsed:
        """Return the new calls and characters of arguments; an answer may end (`last`) anywhere."""
        del last  # nothing is held back
        parsed, position = Parsed(), 0
        while position < len(text) and not self.ends_with_calls:
            if self._scanner is None:
                if text[position] in BETWEEN_CALLS:
                    position += 1
                    continue
                self.ends_with_calls = text[position] == "]"
                self._scanner, self._has_name = CallScanner(), False
            else:
                count = self._scanner.feed(text, position)
                position += count
                self._take(self._scanner, parsed)
                if self._scanner.ended:
                    self._scanner = None
                elif not count:
                    break  # no call: the grammar excludes this
        return parsed

    def _take(self, scanner: CallScanner, parsed: Parsed) -> None:
        """Append what is new of the current call."""
        if scanner.name is None:
            return
        name = None if self._has_name else scanner.name
        self._has_name = True
        self._num_calls += name is not None
        arguments = scanner.take_arguments()
        if name is not None or arguments:
            parsed.calls.append(CallDelta(self._num_calls - 1, name, arguments))


class ArgumentsParser:
    """State of one answer that is the arguments of the function `name`."""

    ends_with_calls = False
    """As at OpenAI, the finish reason of a call that the client demanded by name is that of a text."""

    def __init__(self, name: str) -> None:
        self._scanner = CallScanner(name)
        self._name: str | None = name
        """None once it has been returned."""

    @property
    def is_within_call(self) -> bool:
        """See CallParser."""
        return self._name is None and not self._scanner.ended

    def feed(self, text: str, last: bool = False) -> Parsed:
        """Return the call with its name, then characters of its arguments."""
        del last  # nothing is held back
        self._scanner.feed(text)
        name, arguments = self._name, self._scanner.take_arguments()
        if not arguments:
            return Parsed()
        self._name = None
        return Parsed(calls=[CallDelta(0, name, arguments)])
