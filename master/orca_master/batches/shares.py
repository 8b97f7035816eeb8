"""`Shares`: a quantity that API keys have, bounded for all keys and for each, so that none takes the room of others."""

from __future__ import annotations

from collections import Counter

from orca_master.errors import RequestError


class Shares:
    """At most `most` of all keys and half of it, rounded up, of one key. Without keys the owner is "" and has all.

    `refusal`: the message of the RequestError beyond a bound.
    """

    def __init__(self, most: int, refusal: str) -> None:
        self._most, self._refusal = most, refusal
        self.total = 0
        self._of: Counter[str] = Counter()

    def take(self, owner: str, count: int) -> None:
        """Count what a key has more; raise RequestError, and count nothing, beyond a bound."""
        if self.total + count > self._most or (owner and self._of[owner] + count > -(-self._most // 2)):
            raise RequestError(self._refusal)
        self.add(owner, count)

    def add(self, owner: str, count: int) -> None:
        """Count what a key has more, or less; not bounded."""
        self.total += count
        self._of[owner] += count
        if not self._of[owner]:
            del self._of[owner]
