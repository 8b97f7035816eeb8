"""`StopSearch`: finds stop strings in a text that grows, by Knuth, Morris and Pratt (SIAM Journal on Computing, 1977).

Each character is looked at a constant number of times for each stop string, on average, however long the strings are
and however much of the text may be the beginning of one.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence


class StopSearch:
    """Belongs to one text. No stop string is empty."""

    def __init__(self, strings: Sequence[str]) -> None:
        self._strings = strings
        self._matched = [0] * len(strings)
        """Per string: how many of its first characters the text ends with."""

    @property
    def longest_beginning(self) -> int:
        """Length of the longest end of the text that is an incomplete stop string."""
        return max(self._matched, default=0)

    def feed(self, text: str) -> tuple[int, str] | None:
        """Take the next characters; once a stop string is complete the search is over.

        Return the stop string that begins first, of several the longest one, and how many characters before the end of
        `text` it begins. None if there is none.
        """
        found = []
        for place, string in enumerate(self._strings):
            table, matched = _borders(string), self._matched[place]
            for index, character in enumerate(text):
                while matched and string[matched] != character:
                    matched = table[matched]
                matched += string[matched] == character
                if matched == len(string):
                    found.append((len(text) - (index + 1) + len(string), string))
                    break
            else:
                self._matched[place] = matched
        return max(found, key=lambda hit: (hit[0], len(hit[1])), default=None)


@functools.lru_cache(maxsize=256)
def _borders(string: str) -> tuple[int, ...]:
    """Entry k: the longest beginning of the first k characters, shorter than they, that is also their end.

    All choices of a request have the same stop strings: the cache makes one table for them.
    """
    table = [0, 0]
    for end in range(1, len(string)):
        length = table[end]
        while length and string[length] != string[end]:
            length = table[length]
        table.append(length + (string[length] == string[end]))
    return tuple(table)
