"""How many pipelines each revision holds while a new one replaces the old ones (`RollingUpdate`). Pure: only numbers.

Nothing that serves is removed before its successor serves: as long as no pod fails, at least `replicas -
maxUnavailable` pipelines serve, and the revisions together hold at most `replicas + maxSurge`, unless `replicas` was
lowered meanwhile. While a new revision does not become ready, the old one stays as it is.

Pipelines of old revisions that are down would hold up the rollout for ever, because their place is never free. As with
Kubernetes' Deployments, they go while the others and those of the new revision that serve are enough. A StatefulSet
can only lose its highest pods: a pipeline that is down below one that serves stays, and the new revision exceeds
`maxSurge` by it.

A master holds the requests that it has accepted, also without pipelines (minReplicas 0): while requests wait and no
pipeline serves, an old revision stays, with at least one pipeline (wake_up.py), and the new one waits for its place. An
old master without pipelines and requests stays as the waiting room until enough of the new revision serves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from orca_operator.api_rollout import Bounds


@dataclass(frozen=True, slots=True)
class Engine:
    """The pipelines of one revision.

    `held`: pipelines 0 to `held` - 1 have pods. `serving`: pipelines that serve, none while the master does not accept
    requests. `down`: pipelines that do not serve, as a ready master reports. `dispensable`: an outdated revision that
    does not serve and whose end loses nothing. `recovering`: one that has served and whose master may come back.
    `waiting`: its requests wait, and no pipeline serves. `asleep`: its master runs without pipelines and requests.
    """

    revision: str
    held: int
    serving: frozenset[int] = frozenset()
    down: frozenset[int] = frozenset()
    dispensable: bool = False
    recovering: bool = False
    waiting: bool = False
    asleep: bool = False

    @property
    def place(self) -> int:
        """Pipelines that it holds, or is to have for its waiting requests."""
        return max(1, self.held) if self.waiting else self.held


@dataclass(frozen=True, slots=True)
class Shares:
    """Pipelines that the new revision is to hold, and those that each old one keeps: 0 ends the old revision."""

    new: int
    old: dict[str, int]


def shares(replicas: int, bounds: Bounds, new: Engine, old: Sequence[Engine]) -> Shares:
    """Return the next step towards `replicas` pipelines, at least 1, of the new revision alone."""
    lasting = [engine for engine in old if not engine.dispensable]
    spare = sum(engine.held for engine in lasting) + len(new.serving) - (replicas - bounds.max_unavailable)
    most, blocked = {}, 0
    for engine in lasting:
        removed = max(0, min(spare, _down_at_the_end(engine)))
        most[engine.revision], spare = engine.held - removed, spare - removed
        blocked += sum(index < engine.held - removed for index in engine.down)
    room = replicas + bounds.max_surge - sum(engine.place for engine in old) + max(0, min(spare, blocked))
    wanted = max(_needed(replicas, bounds, new, old), min(replicas, max(new.held, room)))
    lacking = replicas - bounds.max_unavailable - sum(index < wanted for index in new.serving)
    kept = {}
    for engine in sorted(old, key=lambda engine: len(engine.serving), reverse=True):
        if engine.waiting or (engine.asleep and lacking > 0):
            kept[engine.revision] = max(1, engine.held)
        elif engine.recovering and wanted >= replicas:  # the new revision does not wait for its place
            kept[engine.revision] = engine.held
        else:
            kept[engine.revision] = min(_enough(engine, lacking), most.get(engine.revision, 0))
        lacking -= _serving_below(engine, kept[engine.revision])
    return Shares(wanted, kept)


def _needed(replicas: int, bounds: Bounds, new: Engine, old: Sequence[Engine]) -> int:
    """Return how many pipelines the new revision keeps, also beyond `replicas`, because too few lower ones serve."""
    lacking = replicas - bounds.max_unavailable - sum(len(engine.serving) for engine in old)
    return _enough(new, min(lacking, len(new.serving)))


def _down_at_the_end(engine: Engine) -> int:
    """Return how many of the highest pipelines are down, without the first one."""
    return next((count for count in range(engine.held) if engine.held - 1 - count not in engine.down), engine.held - 1)


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
