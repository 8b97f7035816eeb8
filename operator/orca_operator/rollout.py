"""How many pipelines each revision holds while a new one replaces the old ones (`RollingUpdate`). Pure: only numbers.

Nothing that serves is removed before its successor serves: as long as no pod fails, at least `replicas -
maxUnavailable` pipelines serve, and the revisions together hold at most `replicas + maxSurge`, unless `replicas` was
lowered meanwhile. While a new revision does not become ready, the old one stays as it is.

Pipelines of old revisions that are down would hold up the rollout for ever, because their place is never free. As with
Kubernetes' Deployments, they go while the others and those of the new revision that serve are enough. A StatefulSet
can only lose its highest pods: a pipeline that is down below one that serves stays, and the new revision exceeds
`maxSurge` by it.

With minReplicas 0 (sleep.py) an old revision may sleep, or have woken up for requests that came while it slept. It
stays, with one pipeline at least, until those requests are answered or given up, and the new revision waits for its
place. It gets no new requests as soon as the new revision serves enough (`replaced`): otherwise one that cannot wake
up would keep requests that its successor could answer. An old revision that sleeps is the waiting room until then.
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
    `waiting`: requests that came while it slept are unfinished. `asleep`: see sleep.py.
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
        """Pipelines that it holds, or is to hold for the requests that wait."""
        return max(1, self.held) if self.waiting else self.held


@dataclass(frozen=True, slots=True)
class Shares:
    """Pipelines that the new revision is to hold, and those that each old one keeps: 0 ends the old revision.

    `replaced`: old revisions are kept, but the new one serves enough without them.
    """

    new: int
    old: dict[str, int]
    replaced: bool = False


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
    serves_enough = lacking <= 0 < len(new.serving)
    kept = {}
    for engine in sorted(old, key=lambda engine: len(engine.serving), reverse=True):
        if engine.waiting:
            kept[engine.revision] = max(1, min(_enough(engine, max(1, lacking)), most.get(engine.revision, 0)))
        elif engine.asleep and lacking > 0:
            kept[engine.revision] = max(1, engine.held)
        elif engine.recovering and wanted >= replicas:  # the new revision does not wait for its place
            kept[engine.revision] = engine.held
        else:
            kept[engine.revision] = min(_enough(engine, lacking), most.get(engine.revision, 0))
        lacking -= _serving_below(engine, kept[engine.revision])
    return Shares(wanted, kept, serves_enough and any(kept.values()))


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
