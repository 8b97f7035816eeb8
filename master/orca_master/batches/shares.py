"""`Shares`: a quantity that API keys have, bounded for all keys and for each, so that none takes the room of others."""

from __future__ import annotations

from collections import Counter


class Shares:
    """At most `most` of all keys and half of it, rounded up, of one key. Without keys the owner is "" and has all."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.total = 0
        self._of: Counter[str] = Counter()

    def fits(self, owner: str, count: int) -> bool:
        """Return True if a key may have so many more."""
        return self.total + count <= self.most and (not owner or self._of[owner] + count <= -(-self.most // 2))

    def add(self, owner: str, count: int) -> None:
        """Count what a key has more, or less; not bounded."""
        self.total += count
        self._of[owner] += count
        if not self._of[owner]:
            del self._of[owner]
