"""How long requests wait while no pipeline serves, and what new ones expect: progress counts, not the clock alone."""

from __future__ import annotations

import asyncio

import pytest
from orca_contract.state import EngineState
from orca_master.engine import engine_client, patience
from orca_master.engine.engine_client import EngineStatus
from orca_master.engine.patience import Patience
from orca_master.engine.progress import Progress
from orca_master.engine.recovery import Recovery


class Clock:
    """The time of a loop and of the module, which a test sets; timers run when `advance` passes them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: self.now)
        monkeypatch.setattr(patience, "time", self)

    def monotonic(self) -> float:
        return self.now

    async def advance(self, seconds: float) -> None:
        self.now += seconds
        for _ in range(3):
            await asyncio.sleep(0)


def test_progress_begins_the_wait_anew_until_it_is_over(monkeypatch):
    async def run() -> None:
        clock, over = Clock(monkeypatch), []
        made = Patience(60.0, 30.0, lambda: over.append(clock.now))
        made.note_progress()
        await clock.advance(100)
        assert over == [], "no wait was begun"
        made.begin()
        for _ in range(5):
            await clock.advance(59)
            assert over == []
            assert not made.is_over
            made.note_progress()
        await clock.advance(61)
        assert len(over) == 1
        assert made.is_over
        made.note_progress()
        await clock.advance(100)
        assert len(over) == 1, "the requests have failed: there is nothing to wait for"
        made.begin()
        made.end()
        await clock.advance(100)
        assert len(over) == 1
        made.begin()
        await clock.advance(61)
        assert len(over) == 2

    asyncio.run(run())


def test_the_usual_time_is_at_first_that_of_the_start_then_the_average_of_recoveries(monkeypatch):
    async def run() -> None:
        clock = Clock(monkeypatch)
        made = Patience(60.0, 30.0, lambda: None)
        await clock.advance(1200)  # pods wait for a node
        made.note_progress()
        await clock.advance(8)
        made.end()
        assert made.recovery.usual == 8
        for taken, usual in ((2, 2), (4, 3)):
            made.begin()
            assert made.recovery.since == clock.now
            await clock.advance(taken)
            made.note_progress()
            made.end()
            assert made.recovery.usual == usual
        await clock.advance(1000)
        made.note_progress()
        made.end()
        assert made.recovery.usual == 3, "another pipeline began to serve"
        made.begin()
        await clock.advance(61)
        assert made.recovery.longest_wait == 0, "new requests are refused"

    asyncio.run(run())


@pytest.mark.parametrize(
    ("elapsed", "expected", "accepted"),
    [(0, 10, True), (4, 6, True), (9.5, 0.5, True), (10, 0, True), (25, 15, True), (70, 60, True), (71, 61, False)],
)
def test_a_request_is_accepted_if_it_is_expected_to_wait_at_most_that_long(monkeypatch, elapsed, expected, accepted):
    """A recovery that takes longer than usual is expected to go on as long again; Retry-After says the same."""
    recovery = Recovery(since=1000.0, usual=10.0, longest_wait=60.0)
    assert recovery.expected_wait(1000.0 + elapsed) == pytest.approx(expected)
    monkeypatch.setattr(engine_client.time, "monotonic", lambda: 1000.0 + elapsed)
    status = EngineStatus(EngineState.RECOVERING, "a is lost", False, 9, 9, 9, Progress(), 9, 9, recovery)
    assert status.unavailable == ("" if accepted else "recovering: a is lost")
    assert status.retry_after == max(1, expected)


def test_without_pipelines_the_first_request_begins_the_wait_and_none_is_refused(monkeypatch):
    async def run() -> None:
        clock, over = Clock(monkeypatch), []
        made = Patience(60.0, 30.0, lambda: over.append(clock.now))
        made.begin()
        made.rest()
        made.note_requests(0)
        await clock.advance(1000)
        assert over == [], "nobody waits"
        assert made.recovery.accepts(clock.now)
        assert made.recovery.retry_after(clock.now) == 1, "the time of the sleep is no time of a recovery"
        for number in (1, 2):
            made.note_requests(1)
            await clock.advance(50)
            made.note_requests(2)
            assert made.recovery.accepts(clock.now), "longer than the longest expected wait of a recovery"
            await clock.advance(11)
            assert len(over) == number, "the second request shares the wait of the first"
        assert made.recovery.accepts(clock.now), "the next request begins another wait"
        assert not made.is_over
        made.note_requests(1)
        made.end()
        made.note_requests(2)
        await clock.advance(61)
        assert len(over) == 2, "a pipeline serves"
        made.rest()
        made.note_requests(3)
        await clock.advance(61)
        assert len(over) == 3, "requests had come before"
        made.begin()
        await clock.advance(61)
        assert made.recovery.longest_wait == 0, "a lost pipeline is no rest"

    asyncio.run(run())


def test_a_request_that_was_cancelled_shortens_no_later_wait(monkeypatch):
    """Neither that of the next request, nor that of a pipeline that has been added."""

    async def run() -> None:
        clock, over = Clock(monkeypatch), []
        made = Patience(60.0, 30.0, lambda: over.append(clock.now))
        made.rest()
        made.note_requests(1)
        await clock.advance(50)
        made.note_requests(0)
        await clock.advance(1000)
        assert (over, made.is_over) == ([], False)
        made.note_requests(1)
        await clock.advance(50)
        assert over == []
        made.wake()
        await clock.advance(50)
        assert (over, made.is_over) == ([], False), "the wake-up has its own time"
        await clock.advance(11)
        assert (len(over), made.is_over) == (1, True)

    asyncio.run(run())


def test_a_wake_up_is_no_recovery(monkeypatch):
    """Its time says nothing about the next loss: neither that of a sleep nor that of loading."""

    async def run() -> None:
        clock, over = Clock(monkeypatch), []
        made = Patience(60.0, 30.0, lambda: over.append(clock.now))
        made.note_progress()
        await clock.advance(8)
        made.end()
        for requests in (0, 1):
            made.rest()
            made.note_requests(requests)
            await clock.advance(50)
            made.wake()
            await clock.advance(50 if requests == 0 else 5)
            made.note_progress()
            await clock.advance(50)
            assert made.recovery.accepts(clock.now)
            made.end()
            assert made.recovery.usual == 8
        made.begin()
        await clock.advance(2)
        made.end()
        assert made.recovery.usual == 2, "the first recovery replaces the start"
        assert over == []
        made.rest()
        made.note_requests(1)
        made.wake()
        await clock.advance(61)
        assert (len(over), made.is_over, made.recovery.accepts(clock.now)) == (1, True, False), "it has failed"

    asyncio.run(run())


def test_no_wait_at_all_is_an_option():
    assert not Recovery(since=1.0, usual=0.0, longest_wait=0.0).accepts(1.0)


@pytest.mark.parametrize(("seconds", "left"), [(200.0, 150.0), (55.0, 5.0), (20.0, 0.0)])
def test_a_new_limit_counts_from_the_last_progress_of_a_wait_that_is_under_way(monkeypatch, seconds, left):
    async def run() -> None:
        clock, over = Clock(monkeypatch), []
        made = Patience(60.0, 30.0, lambda: over.append(clock.now))
        made.begin()
        await clock.advance(50)
        made.set_seconds(seconds)
        if left:
            await clock.advance(left - 0.1)
            assert over == []
        await clock.advance(0.2)
        assert (len(over), made.is_over) == (1, True)
        made.set_seconds(300.0)
        await clock.advance(1000)
        assert (len(over), made.is_over) == (1, True), "a wait that is over does not begin again"
        made.begin()
        await clock.advance(299)
        assert not made.is_over
        made.end()

    asyncio.run(run())
