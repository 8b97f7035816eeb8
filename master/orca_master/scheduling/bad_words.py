"""`forbidden_tokens`: the tokens that would complete one of a request's bad words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def forbidden_tokens(words: Iterable[Sequence[int]], generated: Sequence[int]) -> frozenset[int]:
    """Return the last token of each word whose other tokens end `generated`, the tokens of the answer so far.

    As in vLLM, tokens of the prompt do not count.
    """
    last = generated[-1] if generated else None
    return frozenset(word[-1] for word in words if len(word) == 1 or (word[-2] == last and _ends_with(generated, word)))


def _ends_with(generated: Sequence[int], word: Sequence[int]) -> bool:
    """Return True if `generated` ends with all tokens of a word but the last; the last of these is known to."""
    return len(word) == 2 or list(generated[1 - len(word) :]) == list(word[:-1])
