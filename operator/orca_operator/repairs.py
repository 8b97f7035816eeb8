"""`Repairs`: how often the operator restores what another client keeps changing back.

The other client may be an operator of another version, which renders the same object differently, or a second
controller. Each of the two would write at every pass, for ever. So the first repairs of an object are immediate, and
the others come less and less often.
"""

from __future__ import annotations

from dataclasses import dataclass
from time import monotonic

IMMEDIATE = 3
"""Repairs of one object without a pause."""
PAUSE_SECONDS = (10.0, 600.0)
"""The pause before the next repair, which doubles up to the second value."""
SETTLED_SECONDS = 1200.0
"""Time without a repair after which the object counts as no longer disputed, and repairs are immediate again."""

Place = tuple[str, str]


@dataclass(frozen=True, slots=True)
class _Repaired:
    content: str
    count: int
    at: float

    @property
    def pause(self) -> float:
        """Seconds between this repair and the next one."""
        first, longest = PAUSE_SECONDS
        return min(first * 2.0 ** min(self.count - IMMEDIATE, 30), longest) if self.count >= IMMEDIATE else 0.0


class Repairs:
    """Repairs of the objects of one OrcaDeployment, by kind and name. Another desired content starts anew."""

    def __init__(self) -> None:
        self._repaired: dict[Place, _Repaired] = {}

    def is_early(self, place: Place, content: str) -> bool:
        """Whether the next repair to this content has to wait."""
        repaired = self._recent(place)
        return repaired is not None and repaired.content == content and monotonic() - repaired.at < repaired.pause

    def note(self, place: Place, content: str) -> None:
        """Record a repair to this content."""
        before = self._recent(place)
        count = before.count + 1 if before is not None and before.content == content else 1
        self._repaired[place] = _Repaired(content, count, monotonic())

    def disputes(self) -> list[str]:
        """Return a sentence for each object whose repairs have to wait."""
        recent = ((place, self._recent(place)) for place in sorted(self._repaired))
        return [
            f"{kind} {name}: another client keeps changing it, perhaps an operator of another version; it is restored "
            "ever less often"
            for (kind, name), repaired in recent
            if repaired is not None and repaired.pause
        ]

    def _recent(self, place: Place) -> _Repaired | None:
        repaired = self._repaired.get(place)
        return None if repaired is None or monotonic() - repaired.at > SETTLED_SECONDS else repaired
