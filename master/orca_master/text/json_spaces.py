"""`JsonSpaces`: bounds the whitespace between two parts of JSON, where some models would write nothing else.

llguidance cannot: its `whitespace_pattern` bounds one lexeme, which another one may follow. So a mask beyond the bound
has no token that begins with whitespace. Strings and text keep theirs: masks show the difference, because JSON has no
line break in a string, and no letter x and no dot in a place for whitespace.
"""

from __future__ import annotations

from collections.abc import Callable

from llguidance import LLTokenizer

MOST_SPACES = 32
"""Characters of whitespace between two parts of JSON beyond which no further token begins with whitespace."""
SPACES = b" \t\r\n"


class JsonSpaces:
    """The whitespace in the tokens of a vocabulary."""

    def __init__(self, tokenizer: LLTokenizer) -> None:
        self._tokenizer = tokenizer
        texts = [tokenizer.decode_bytes([token]) for token in range(tokenizer.vocab_size)]
        self._breaks = _bits(texts, lambda text: text in (b"\n", b"\r", b"\t"))
        self._letters = _bits(texts, lambda text: text in (b"x", b"."))
        self._others = _bits(texts, lambda text: text[:1] not in SPACES)

    def after(self, token: int, num_before: int) -> int:
        """Return the number of characters of whitespace at the end of an answer that had `num_before` of them."""
        text = self._tokenizer.decode_bytes([token])
        rest = text.rstrip(SPACES)
        return len(text) - len(rest) + (0 if rest else num_before)

    def bounded(self, mask: bytearray) -> bytearray:
        """Return a mask without tokens that begin with whitespace; the mask itself elsewhere than between parts."""
        allowed = int.from_bytes(mask, "little")
        is_between = allowed & self._breaks and not allowed & self._letters
        rest = allowed & self._others
        return bytearray(rest.to_bytes(len(mask), "little")) if is_between and rest else mask


def _bits(texts: list[bytes], is_set: Callable[[bytes], bool]) -> int:
    """Return a number whose bits are set for the tokens whose texts `is_set` chooses."""
    bits = bytearray(-(-len(texts) // 8))
    for token, text in enumerate(texts):
        bits[token // 8] |= is_set(text) << token % 8
    return int.from_bytes(bits, "little")
