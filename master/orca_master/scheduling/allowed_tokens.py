"""`AllowedTokens`: the only tokens that an answer may have, which all choices of a request share."""

from __future__ import annotations

from collections.abc import Sequence


class AllowedTokens(bytes):
    """One bit per token, that of token 0 the lowest of the first byte; later tokens have none. Empty: no limit."""

    @classmethod
    def of(cls, tokens: Sequence[int]) -> AllowedTokens:
        """Return the set of these token ids, no limit without any. Its size follows from the largest id."""
        if not tokens:
            return NO_LIMIT
        most = max(tokens)
        digits = bytearray(b"0" * (most + 1))  # of a binary number: a tenth of the time of setting the bits of bytes
        one = ord("1")
        for token in tokens:
            digits[most - token] = one
        return cls(int(digits, 2).to_bytes(most // 8 + 1, "little"))

    @property
    def largest(self) -> int:
        """The largest token id, -1 without any."""
        return int.from_bytes(self, "little").bit_length() - 1

    @property
    def tokens(self) -> list[int]:
        """The token ids in ascending order."""
        digits = f"{int.from_bytes(self, 'little'):b}"[::-1]
        return [token for token, digit in enumerate(digits) if digit == "1"]

    def within(self, mask: bytearray) -> bytearray:
        """Return what of a mask of the same form is allowed, the mask itself without a limit."""
        if not self:
            return mask
        allowed = int.from_bytes(mask, "little") & int.from_bytes(self, "little")
        return bytearray(allowed.to_bytes(len(mask), "little"))


NO_LIMIT = AllowedTokens()
