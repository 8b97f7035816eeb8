"""The bound of an iteration: from the times of such iterations, generous for the first, and never below ten seconds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from orca_master.engine.config import LONGEST_SECONDS
from orca_master.engine.iteration_watch import DOUBT, FIRST_SECONDS, FLOOR_SECONDS, WEIGHT, IterationWatch, kind_of
from orca_master.scheduling.batch import Batch, ScheduledRequest
from orca_master.scheduling.request import Request


def batch(*sizes: tuple[int, int]) -> Batch:
    """Return a batch of requests with (tokens, context length)."""
    return Batch(
        "a",
        tuple(
            ScheduledRequest(Request(str(row), row, (1,), 1), 0, row, num_tokens, context, (), False, True)
            for row, (num_tokens, context) in enumerate(sizes)
        ),
    )


class Clock:
    """The time of a loop, which a test sets; timers run when `advance` passes them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        loop = asyncio.get_running_loop()
        monkeypatch.setattr(loop, "time", lambda: self.now)

    async def advance(self, seconds: float) -> None:
        self.now += seconds
        for _ in range(3):
            await asyncio.sleep(0)


def play(monkeypatch: pytest.MonkeyPatch, scene: Callable[[Clock], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        await scene(Clock(monkeypatch))

    asyncio.run(run())


def test_iterations_of_one_magnitude_are_of_one_kind():
    assert kind_of(batch((1, 100), (1, 100))) == kind_of(batch((1, 110), (1, 90)))
    kinds = {kind_of(batch(*sizes)) for sizes in ([(1, 5)], [(1, 5000)], [(512, 0)], [(512, 90_000)], [(1, 5)] * 8)}
    assert len(kinds) == 5


def test_drafted_tokens_count_as_tokens_of_the_iteration():
    (entry,) = batch((1, 5000)).requests
    drafted = entry._replace(draft=(7,) * 63)
    assert kind_of(Batch("a", (drafted,))) == kind_of(batch((64, 5000)))


def test_the_first_of_a_kind_has_a_minute_beyond_its_share_of_a_warm_up(monkeypatch):
    async def scene(clock: Clock) -> None:
        watch = IterationWatch(None, lambda _: None)
        watch.note_formation(0.5)
        watch.begin(batch((1, 0)))
        assert watch.seconds == FIRST_SECONDS + 0.5
        watch.begin(batch((1500, 0)))
        assert watch.seconds == FIRST_SECONDS + 0.5 * 2048 / 64
        watch.note_formation(30)
        watch.begin(batch((1500, 0)))
        assert watch.seconds == LONGEST_SECONDS
        watch.stop()

    play(monkeypatch, scene)


@pytest.mark.parametrize(("taken", "bound"), [(0.02, FLOOR_SECONDS), (2.0, 40.0), (100.0, LONGEST_SECONDS)])
def test_later_iterations_have_twenty_times_the_average(monkeypatch, taken, bound):
    async def scene(clock: Clock) -> None:
        stalls: list[float] = []
        watch = IterationWatch(None, stalls.append)
        for _ in range(3):
            watch.begin(batch((1, 40)))
            await clock.advance(min(taken, 59))
            watch.end()
        watch.begin(batch((1, 40)))
        assert watch.seconds == pytest.approx(bound)
        await clock.advance(bound - 0.1)
        assert stalls == []
        await clock.advance(0.2)
        assert stalls == [pytest.approx(bound)]
        assert not watch.watches

    play(monkeypatch, scene)


def test_the_average_follows(monkeypatch):
    """A context that grows makes iterations of a kind slower by and by."""

    async def scene(clock: Clock) -> None:
        watch = IterationWatch(None, lambda _: pytest.fail("no stall"))
        for tenths in range(1, 200):
            watch.begin(batch((1, 40)))
            await clock.advance(tenths / 10)
            watch.end()
        watch.begin(batch((1, 40)))
        assert watch.seconds > 10 * 19.9
        watch.stop()

    play(monkeypatch, scene)


@pytest.mark.parametrize("before", [(512, 0), (1, 40)], ids=["another kind", "the same kind"])
def test_a_bound_that_was_too_short_grows(monkeypatch, before):
    """Otherwise an iteration would end every formation in which it is repeated, behind quicker iterations."""

    async def scene(clock: Clock) -> None:
        watch = IterationWatch(None, lambda _: None)
        watch.begin(batch((1, 40)))
        watch.end()
        bounds = []
        for _ in range(4):
            watch.begin(batch((1, 40)))
            bounds.append(watch.seconds)
            await clock.advance(watch.seconds + 0.1)
            watch.begin(batch(before))
            watch.end()
        factor = DOUBT * (1 - WEIGHT) if before == (1, 40) else DOUBT
        assert bounds == [pytest.approx(min(LONGEST_SECONDS, FLOOR_SECONDS * factor**power)) for power in range(4)]
        for _ in range(30):
            watch.begin(batch((1, 40)))
            watch.end()
        watch.begin(batch((1, 40)))
        assert watch.seconds == FLOOR_SECONDS, "results take the doubt away"
        watch.stop()

    play(monkeypatch, scene)


def test_a_process_that_was_suspended_waits_once_more(monkeypatch):
    """Results may lie in its sockets."""

    async def scene(clock: Clock) -> None:
        stalls: list[float] = []
        watch = IterationWatch(5.0, stalls.append)
        watch.begin(batch((1, 40)))
        await clock.advance(3600)
        assert stalls == []
        await clock.advance(4.9)
        assert stalls == []
        await clock.advance(0.2)
        assert stalls == [5.0]

    play(monkeypatch, scene)


def test_a_given_bound_holds_for_every_iteration(monkeypatch):
    async def scene(clock: Clock) -> None:
        stalls: list[float] = []
        watch = IterationWatch(1000.0, stalls.append)
        for _ in range(2):
            watch.begin(batch((1, 0)))
            await clock.advance(1000.1)
        assert stalls == [1000.0, 1000.0]

    play(monkeypatch, scene)


def test_nothing_is_noticed_while_nothing_is_in_flight(monkeypatch):
    async def scene(clock: Clock) -> None:
        watch = IterationWatch(1.0, lambda _: pytest.fail("no stall"))
        watch.begin(batch((1, 0)))
        watch.stop()
        await clock.advance(1.5)
        watch.begin(batch((1, 0)))
        watch.end()
        await clock.advance(1.5)

    play(monkeypatch, scene)


def test_the_first_iteration_of_a_formation_has_the_time_of_a_first(monkeypatch):
    """It may connect the partitions; workers that were formed before have repeated no warm-up."""

    async def scene(clock: Clock) -> None:
        watch = IterationWatch(None, lambda _: None)
        watch.note_formation(2.0)
        for bound in (FIRST_SECONDS + 2.0, FLOOR_SECONDS):
            watch.begin(batch((1, 40)))
            assert watch.seconds == bound
            watch.end()
        watch.note_formation(0.0)
        watch.begin(batch((1, 40)))
        assert watch.seconds == FIRST_SECONDS + 2.0
        watch.stop()

    play(monkeypatch, scene)


@pytest.mark.parametrize(("taken", "wait"), [(30.0, 20.0), (80.0, 0.0)])
def test_a_new_bound_counts_from_the_begin_of_the_iteration_that_is_watched(monkeypatch, taken, wait):
    async def scene(clock: Clock) -> None:
        stalls: list[float] = []
        watch = IterationWatch(300.0, stalls.append)
        watch.begin(batch((1, 0)))
        await clock.advance(taken)
        watch.set_timeout(50.0)
        if wait:
            await clock.advance(wait - 0.1)
            assert stalls == []
        await clock.advance(0.2)
        assert stalls == [50.0]

    play(monkeypatch, scene)


def test_a_fixed_bound_can_become_automatic_and_follows_the_times_measured_before(monkeypatch):
    async def scene(clock: Clock) -> None:
        stalls: list[float] = []
        watch = IterationWatch(300.0, stalls.append)
        for _ in range(2):
            watch.begin(batch((1, 0)))
            await clock.advance(2.0)
            watch.end()
        watch.set_timeout(None)
        watch.begin(batch((1, 0)))
        assert watch.seconds == 40.0
        watch.set_timeout(5.0)
        watch.set_timeout(None)
        await clock.advance(39.0)
        assert (stalls, watch.seconds) == ([], 40.0)
        await clock.advance(1.5)
        assert stalls == [40.0]

    play(monkeypatch, scene)


@pytest.mark.parametrize("order", ["before", "during"])
def test_an_iteration_that_waits_behind_another_command_has_its_time_too(monkeypatch, order):
    async def scene(clock: Clock) -> None:
        stalls: list[float] = []
        watch = IterationWatch(5.0, stalls.append)
        if order == "before":
            watch.begin(batch((1, 40)))
        with watch.allowing(60.0):
            if order == "during":
                watch.begin(batch((1, 40)))
            assert watch.seconds == 65.0
            await clock.advance(64.9)
            assert stalls == []
        assert watch.seconds == pytest.approx(64.9 + 5.0)
        await clock.advance(4.9)
        assert stalls == []
        await clock.advance(0.2)
        assert stalls == [pytest.approx(69.9)]
        watch.stop()
        assert watch.seconds == 5.0

    play(monkeypatch, scene)


def test_an_iteration_that_does_not_return_behind_another_command_is_a_stall(monkeypatch):
    async def scene(clock: Clock) -> None:
        stalls: list[float] = []
        watch = IterationWatch(5.0, stalls.append)
        with watch.allowing(60.0):
            watch.begin(batch((1, 40)))
            await clock.advance(65.1)
        assert stalls == [65.0]
        assert (watch.watches, watch.seconds) == (False, 5.0)

    play(monkeypatch, scene)


def test_a_new_bound_has_the_time_of_the_other_command_too(monkeypatch):
    async def scene(clock: Clock) -> None:
        stalls: list[float] = []
        watch = IterationWatch(300.0, stalls.append)
        watch.begin(batch((1, 0)))
        with watch.allowing(60.0):
            watch.set_timeout(5.0)
            await clock.advance(64.9)
            assert stalls == []
            await clock.advance(0.2)
            assert stalls == [65.0]

    play(monkeypatch, scene)


def test_the_time_behind_another_command_is_not_averaged(monkeypatch):
    """Whether the command began before or after the iteration, and ended before or after it."""

    async def scene(clock: Clock) -> None:
        watch = IterationWatch(None, lambda _: pytest.fail("no stall"))
        for _ in range(2):
            watch.begin(batch((1, 40)))
            watch.end()
        watch.begin(batch((1, 40)))
        with watch.allowing(60.0):
            await clock.advance(50.0)
        watch.end()
        watch.begin(batch((1, 40)))
        with watch.allowing(60.0):
            await clock.advance(50.0)
            watch.end()
            watch.begin(batch((1, 40)))
            await clock.advance(50.0)
            watch.end()
            watch.begin(batch((1, 40)))
        await clock.advance(5.0)
        watch.end()
        watch.begin(batch((1, 40)))
        assert watch.seconds == FLOOR_SECONDS
        await clock.advance(9.0)
        watch.end()
        watch.begin(batch((1, 40)))
        assert watch.seconds == pytest.approx(20 * 9.0 * WEIGHT), "later times count again"
        watch.stop()

    play(monkeypatch, scene)
