"""`StopSearch`: incremental search for stop strings, by Knuth, Morris and Pratt (SIAM Journal on Computing, 1977).

The amortized cost per character and stop string is constant.
"""

from __future__ import annotations

import functools
from array import array
from collections.abc import Sequence


class StopSearch:
    """Search state of one text. Stop strings must not be empty."""

    def __init__(self, strings: Sequence[str]) -> None:
        self._strings = [(string, _borders(string)) for string in strings]
        """The stop strings with their failure tables."""
        self._matched = [0] * len(strings)
        """Per string: length of its longest prefix that is a suffix of the text."""

    @property
    def longest_beginning(self) -> int:
        """Length of the longest suffix of the text that is a prefix of a stop string."""
        return max(self._matched, default=0)

    def feed(self, text: str, ignores: bool = False) -> tuple[int, str] | None:
        """Search the next characters; do not call again after a match.

        `ignores`: a stop string that ends in them is no match. Return the match that begins first (of several, the
        longest) as the distance from its beginning to the end of `text` and the stop string; None without a match.
        """
        matches = []
        for place, (string, table) in enumerate(self._strings):
            matched = self._matched[place]
            for index, character in enumerate(text):
                while matched and string[matched] != character:
                    matched = table[matched]
                matched += string[matched] == character
                if matched == len(string) and ignores:
                    matched = table[matched]
                elif matched == len(string):
                    matches.append((len(text) - (index + 1) + len(string), string))
                    break
            else:
                self._matched[place] = matched
        return max(matches, key=lambda match: (match[0], len(match[1])), default=None)


@functools.lru_cache(maxsize=256)
def _borders(string: str) -> array[int]:
    """Return the failure table: entry k is the length of the longest proper border of the first k characters.

    Cached, because all choices of a request have the same stop strings.
    """
    table = array("I", (0, 0))
    for end in range(1, len(string)):
        length = table[end]
        while length and string[length] != string[end]:
            length = table[length]
        table.append(length + (string[length] == string[end]))
    return table
