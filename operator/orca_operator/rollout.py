"""How many pipelines each revision holds while a new one replaces the old ones (`RollingUpdate`). Pure: only numbers.

Nothing that serves is removed before its successor serves: as long as no pod fails, at least `replicas -
maxUnavailable` pipelines serve, and the revisions together hold at most `replicas + maxSurge`, unless `replicas` was
lowered meanwhile. While a new revision does not become ready, the old one stays as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from orca_operator.api_rollout import Bounds


@dataclass(frozen=True, slots=True)
class Engine:
    """The pipelines of one revision.

    `held`: pipelines 0 to `held` - 1 have pods. `serving`: pipelines that serve, none while the master does not accept
    requests. `dispensable`: an outdated revision that does not serve and whose end loses nothing.
    """

    revision: str
    held: int
    serving: frozenset[int] = frozenset()
    dispensable: bool = False


@dataclass(frozen=True, slots=True)
class Shares:
    """Pipelines that the new revision is to hold, and those that each old one keeps: 0 ends the old revision."""

    new: int
    old: dict[str, int]


def shares(replicas: int, bounds: Bounds, new: Engine, old: Sequence[Engine]) -> Shares:
    """Return the next step towards `replicas` pipelines, at least 1, of the new revision alone."""
    room = replicas + bounds.max_surge - sum(engine.held for engine in old)
    wanted = min(replicas, max(new.held, room))
    lacking = replicas - bounds.max_unavailable - sum(index < wanted for index in new.serving)
    kept = {}
    for engine in sorted(old, key=lambda engine: len(engine.serving), reverse=True):
        kept[engine.revision] = 0 if engine.dispensable else _enough(engine, lacking)
        lacking -= _serving_below(engine, kept[engine.revision])
    return Shares(wanted, kept)


def _enough(engine: Engine, lacking: int) -> int:
    """Return the smallest number of pipelines of which `lacking` serve; all pipelines if fewer serve."""
    if lacking <= 0:
        return 0
    return next(
        (count for count in range(1, engine.held) if _serving_below(engine, count) >= lacking),
        engine.held,
    )


def _serving_below(engine: Engine, count: int) -> int:
    return sum(index < count for index in engine.serving)
