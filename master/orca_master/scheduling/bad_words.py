"""`BadWordTokens`: the bad words of a request as tokens, which all of its choices share."""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Sequence
from functools import cached_property


class BadWordTokens(tuple[tuple[int, ...], ...]):
    """Sequences of tokens, of which the last is not generated behind the others."""

    def forbidden(self, generated: Sequence[int]) -> frozenset[int]:
        """Return the last token of each word whose other tokens end `generated`, the tokens of the answer so far.

        As in vLLM, tokens of the prompt do not count.
        """
        end = array("I", generated[-self._most_before :]).tobytes()
        return frozenset().union(*(tokens for before, tokens in self._last_tokens.items() if end.endswith(before)))

    @cached_property
    def _last_tokens(self) -> dict[bytes, set[int]]:
        """By the tokens before them. The comparison of bytes takes a twentieth of that of lists."""
        last_tokens: dict[bytes, set[int]] = defaultdict(set)
        for *before, last in self:
            last_tokens[array("I", before).tobytes()].add(last)
        return last_tokens

    @cached_property
    def _most_before(self) -> int:
        return max(map(len, self), default=1)


NO_BAD_WORDS = BadWordTokens()
