"""Random histories of rollouts: pods start and fail, specs are edited and edited back, revisions never start, sleep, or
wake up for requests."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from orca_operator.api_rollout import Bounds
from orca_operator.rollout import Engine, Shares, shares

NEW, OLD = "bbbbbb", "aaaaaa"


@pytest.mark.parametrize(
    ("replicas", "bounds", "new", "old", "expected"),
    [
        (1, Bounds(1, 0), Engine(NEW, 0), Engine(OLD, 1, frozenset({0})), Shares(1, {OLD: 1})),
        (1, Bounds(1, 0), Engine(NEW, 1), Engine(OLD, 1, frozenset({0})), Shares(1, {OLD: 1})),
        (1, Bounds(1, 0), Engine(NEW, 1, frozenset({0})), Engine(OLD, 1, frozenset({0})), Shares(1, {OLD: 0})),
        (3, Bounds(1, 0), Engine(NEW, 1, frozenset({0})), Engine(OLD, 3, frozenset({0, 1, 2})), Shares(1, {OLD: 2})),
        (3, Bounds(1, 0), Engine(NEW, 1, frozenset({0})), Engine(OLD, 2, frozenset({0, 1})), Shares(2, {OLD: 2})),
        (3, Bounds(0, 1), Engine(NEW, 0), Engine(OLD, 3, frozenset({0, 1, 2})), Shares(0, {OLD: 2})),
        (1, Bounds(0, 1), Engine(NEW, 0), Engine(OLD, 1, frozenset({0})), Shares(0, {OLD: 0})),
        (2, Bounds(1, 0), Engine(NEW, 1), Engine(OLD, 2, frozenset({1})), Shares(1, {OLD: 2})),
        (1, Bounds(1, 0), Engine(NEW, 0), Engine(OLD, 2, frozenset({0, 1})), Shares(0, {OLD: 1})),
        (1, Bounds(1, 0), Engine(NEW, 1), Engine(OLD, 1, dispensable=True), Shares(1, {OLD: 0})),
        # What is down does not hold the rollout up, but goes only after a pipeline of the new revision serves,
        (3, Bounds(1, 0), Engine(NEW, 0), Engine(OLD, 3, frozenset({0}), frozenset({1, 2})), Shares(1, {OLD: 3})),
        (3, Bounds(1, 0), Engine(NEW, 1), Engine(OLD, 3, frozenset({0}), frozenset({1, 2})), Shares(1, {OLD: 3})),
        (3, Bounds(1, 0), Engine(NEW, 1, frozenset({0})), Engine(OLD, 3, frozenset({0}), frozenset({1, 2})),
         Shares(1, {OLD: 2})),
        # or, without a surge, as far as pipelines may lack.
        (3, Bounds(0, 1), Engine(NEW, 0), Engine(OLD, 3, frozenset({0}), frozenset({1, 2})), Shares(0, {OLD: 2})),
        # Below a pipeline that serves it cannot go; the new revision exceeds the surge.
        (3, Bounds(1, 0), Engine(NEW, 1, frozenset({0})), Engine(OLD, 3, frozenset({2}), frozenset({0, 1})),
         Shares(2, {OLD: 3})),
        # Fewer replicas do not remove the pipeline that serves.
        (1, Bounds(1, 0), Engine(NEW, 2, frozenset({1}), frozenset({0})), Engine(OLD, 0), Shares(2, {OLD: 0})),
        (1, Bounds(1, 0), Engine(NEW, 2, frozenset({0, 1})), Engine(OLD, 0), Shares(1, {OLD: 0})),
        (1, Bounds(1, 0), Engine(NEW, 2), Engine(OLD, 0), Shares(1, {OLD: 0})),
        # Whose master is unknown stays.
        (3, Bounds(1, 0), Engine(NEW, 1, frozenset({0})), Engine(OLD, 3), Shares(1, {OLD: 3})),
        # A master that may come back has requests, and is waited for if that costs the new revision nothing.
        (1, Bounds(1, 0), Engine(NEW, 1, frozenset({0})), Engine(OLD, 1, recovering=True), Shares(1, {OLD: 1}, True)),
        (1, Bounds(0, 1), Engine(NEW, 0), Engine(OLD, 1, recovering=True), Shares(0, {OLD: 0})),
        # Requests that came while it slept keep the old revision, also when either serves, and take a place.
        (1, Bounds(1, 0), Engine(NEW, 0), Engine(OLD, 0, waiting=True), Shares(1, {OLD: 1})),
        (1, Bounds(1, 0), Engine(NEW, 1, frozenset({0})), Engine(OLD, 0, waiting=True), Shares(1, {OLD: 1}, True)),
        (1, Bounds(1, 0), Engine(NEW, 1, frozenset({0})), Engine(OLD, 1, down=frozenset({0}), waiting=True),
         Shares(1, {OLD: 1}, True)),
        (1, Bounds(1, 0), Engine(NEW, 1, frozenset({0})), Engine(OLD, 1, frozenset({0}), waiting=True),
         Shares(1, {OLD: 1}, True)),
        (3, Bounds(1, 0), Engine(NEW, 3, frozenset({0, 1, 2})), Engine(OLD, 3, frozenset({1, 2}), waiting=True),
         Shares(3, {OLD: 2}, True)),
        (1, Bounds(0, 1), Engine(NEW, 0), Engine(OLD, 0, waiting=True), Shares(0, {OLD: 1})),
        # Requests of an old revision that did not sleep do not: those of a broken pipeline must not stop its repair.
        (1, Bounds(0, 1), Engine(NEW, 0), Engine(OLD, 1, down=frozenset({0})), Shares(1, {OLD: 0})),
        # A master without pipelines and requests is the waiting room until the new revision serves, or may lack.
        (1, Bounds(1, 0), Engine(NEW, 1), Engine(OLD, 0, asleep=True), Shares(1, {OLD: 1})),
        (1, Bounds(1, 0), Engine(NEW, 1, frozenset({0})), Engine(OLD, 0, asleep=True), Shares(1, {OLD: 0})),
        (1, Bounds(0, 1), Engine(NEW, 0), Engine(OLD, 0, asleep=True), Shares(1, {OLD: 0})),
    ],
)  # fmt: skip
def test_steps(replicas, bounds, new, old, expected):
    assert shares(replicas, bounds, new, [old]) == expected


@dataclass
class World:
    """Engines by revision, changed by passes of the operator and by what happens to pods.

    A revision of `broken` never starts, a pipeline of `stuck` (revision, index) never starts again once it has failed.
    `unready`: revisions whose master is down. `current`: the revision that served last, as the status has it.
    `asleep`: revisions without pipelines; `backlog`: those with requests that came while they slept.
    """

    broken: frozenset[int]
    replicas: int = 1
    bounds: Bounds = field(default_factory=lambda: Bounds(1, 0))
    wanted: int = 0
    current: int = -1
    held: dict[int, int] = field(default_factory=dict)
    serving: dict[int, set[int]] = field(default_factory=dict)
    stuck: set[tuple[int, int]] = field(default_factory=set)
    unready: set[int] = field(default_factory=set)
    asleep: set[int] = field(default_factory=set)
    backlog: set[int] = field(default_factory=set)

    def engine(self, revision: int) -> Engine:
        held, up = self.held.get(revision, 0), frozenset(self.serving.get(revision, ()))
        if revision in self.unready:
            return Engine(str(revision), held, recovering=revision != self.wanted)
        waiting, asleep = revision in self.backlog, revision in self.asleep
        never_served = not up and revision != self.current and not waiting and not asleep
        down = frozenset(range(held)) - up
        return Engine(
            str(revision),
            held,
            up,
            down,
            never_served and revision != self.wanted,
            waiting=waiting,
            asleep=asleep and not waiting,
        )

    def total(self) -> int:
        return sum(len(serving) for revision, serving in self.serving.items() if revision not in self.unready)

    def run_pass(self) -> None:
        for revision in self.asleep & self.backlog - self.unready:  # sleep.wake_ups
            self.asleep.discard(revision)
            self.held[revision] = 1
        if self.wanted in self.asleep and self.held.keys() == {self.wanted} and self.replicas == 1:
            return  # sleep.desired_pipelines
        self._roll_out()

    def _roll_out(self) -> None:
        served, held = self.total(), sum(self.held.values())
        old = [self.engine(revision) for revision in self.held if revision != self.wanted]
        step = shares(self.replicas, self.bounds, self.engine(self.wanted), old)
        self.held[self.wanted] = step.new
        if step.new:
            self.asleep.discard(self.wanted)
        enough = len(self.serving.get(self.wanted, ())) >= self.replicas - self.bounds.max_unavailable
        assert enough or not step.replaced, "requests go only to what serves"
        for engine in old:
            ends = not step.old[engine.revision]
            recovers = engine.recovering and engine.held > 0
            assert not ends or not recovers or step.new < self.replicas, "requests are lost"
            assert not ends or not engine.waiting, "requests that came during the sleep are lost"
            assert not ends or not engine.asleep or enough, "the waiting room is lost"
        for revision, kept in step.old.items():
            self.held[int(revision)] = min(kept, self.held[int(revision)])
        for revision, kept in list(self.held.items()):
            self.serving[revision] = {index for index in self.serving.get(revision, ()) if index < kept}
            if step.old.get(str(revision)) == 0:
                del self.held[revision], self.serving[revision]
                for those in (self.unready, self.asleep, self.backlog):
                    those.discard(revision)
        assert self.total() >= min(served, self.replicas - self.bounds.max_unavailable), "too few serve"
        most = self.replicas + self.bounds.max_surge + sum(len(engine.down) + engine.waiting for engine in old)
        assert sum(self.held.values()) <= max(held, most), "too many pods"
        if len(self.serving[self.wanted]) >= self.replicas or self.current not in self.held:
            self.current = self.wanted if self.serving[self.wanted] else self.current

    def start(self, count: int) -> None:
        """Let pods of working revisions start, at most `count`."""
        for revision, held in self.held.items():
            if revision not in self.broken:
                for index in sorted(set(range(held)) - self.serving[revision])[:count]:
                    if (revision, index) not in self.stuck:
                        self.serving[revision].add(index)

    def fail(self, number: int, stuck: bool = False) -> None:
        """Let one serving pipeline fail."""
        places = [(revision, index) for revision, serving in self.serving.items() for index in sorted(serving)]
        if places:
            revision, index = places[number % len(places)]
            self.serving[revision].discard(index)
            self.stuck |= {(revision, index)} if stuck else set()

    def fall_asleep(self) -> None:
        """Let the only revision lose its last pipeline, as sleep.desired_pipelines permits."""
        alone = self.held == {self.wanted: 1} and self.replicas == 1 and self.wanted not in self.unready
        if alone and self.serving[self.wanted] and self.wanted not in self.backlog:
            self.held[self.wanted], self.serving[self.wanted] = 0, set()
            self.asleep.add(self.wanted)

    def request(self, revision: int) -> None:
        """Let a request come to a master; only without pipelines it matters."""
        self.backlog |= {revision} & self.asleep

    def answer(self) -> None:
        """Let what serves answer the requests that came while it slept."""
        self.backlog -= {revision for revision in self.backlog if self.serving[revision]} - self.unready


events = st.one_of(
    st.tuples(st.just("fall asleep"), st.just(0)),
    st.tuples(st.just("request"), st.integers(0, 4)),
    st.tuples(st.just("answer"), st.just(0)),
    st.tuples(st.just("give up"), st.integers(0, 4)),
    st.tuples(st.just("edit"), st.integers(0, 4)),
    st.tuples(st.just("scale"), st.integers(1, 5)),
    st.tuples(st.just("start"), st.integers(1, 3)),
    st.tuples(st.just("fail"), st.integers(0, 20)),
    st.tuples(st.just("get stuck"), st.integers(0, 20)),
    st.tuples(st.just("lose the master"), st.integers(0, 4)),
    st.tuples(st.just("get the master back"), st.integers(0, 4)),
    st.tuples(st.just("pass"), st.just(0)),
)
bounds = st.builds(Bounds, st.integers(0, 3), st.integers(0, 3)).filter(lambda found: found != Bounds(0, 0))


def play(world: World, history: list[tuple[str, int]]) -> None:
    for what, value in history:
        match what:
            case "edit":
                world.wanted = value
            case "scale":
                world.replicas = value
            case "start":
                world.start(value)
            case "fail" | "get stuck":
                world.fail(value, what == "get stuck")
            case "lose the master":
                world.unready |= {value} & set(world.held)
            case "get the master back":
                world.unready.discard(value)
            case "fall asleep":
                world.fall_asleep()
            case "request":
                world.request(value)
            case "answer":
                world.answer()
            case "give up":
                world.backlog.discard(value)
        world.run_pass()


ASLEEP = [("pass", 0), ("start", 1), ("fall asleep", 0)]
"""History of a deployment that sleeps."""


@pytest.mark.long
@settings(max_examples=2000, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.sets(st.integers(1, 4), max_size=3),
    bounds,
    st.sampled_from([[], ASLEEP, [*ASLEEP, ("request", 0)]]),
    st.lists(events, max_size=30),
    st.integers(0, 4),
)
def test_every_history_keeps_the_bounds_and_ends(broken, limits, beginning, history, last):
    """`run_pass` asserts the bounds; a working revision takes over, a broken one leaves what serves as it was.

    At the end requests come to what sleeps, and those that nothing answers are given up.
    """
    world = World(frozenset(broken), bounds=limits)
    play(world, beginning + history)
    world.unready.clear()
    for revision in range(5):
        world.request(revision)
    world.backlog -= {revision for revision in world.backlog if revision in broken or (revision, 0) in world.stuck}
    world.stuck = {(revision, index) for revision, index in world.stuck if revision != (0 if last in broken else last)}
    if last in broken:
        world.wanted = 0
        for _ in range(40):
            world.start(1)
            world.answer()
            world.run_pass()
        served = world.total()
        world.wanted = last
        for _ in range(20):
            world.start(3)
            world.run_pass()
        assert world.total() >= min(served, world.replicas - limits.max_unavailable)
    else:
        world.wanted = last
        for _ in range(60):
            world.start(1)
            world.answer()
            world.run_pass()
        assert world.held == {last: world.replicas}
        assert world.serving == {last: set(range(world.replicas))}
