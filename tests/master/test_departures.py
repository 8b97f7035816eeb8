"""When the engine gives a pipeline up of which a worker is shutting down: the table in departures.py."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest
from orca_contract.reasons import Reason
from orca_contract.state import EngineState, PipelinePhase
from orca_master.engine import departures
from orca_master.engine import supervisor as supervisor_module
from orca_master.engine.config import EngineConfig, WorkerOwner
from orca_master.engine.faults import WorkerLostError
from orca_master.engine.progress import RETURN_SECONDS
from orca_master.scheduling.request import ServiceClass
from support.fake_engine import Engine, play, topology
from support.fake_workers import continuation

RESTARTED = EngineConfig(worker_owner=WorkerOwner.CLUSTER, recovery_timeout=60.0)
KILLED = WorkerLostError("worker a:1: killed", Reason.WORKER_OOM_KILLED, "a:1")
SHORT, LONG = 0.01, 1000.0


@pytest.fixture(autouse=True)
def _retry_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor_module, "RETRY_SECONDS", 0.001)


@pytest.fixture
def grace(monkeypatch: pytest.MonkeyPatch):
    """Return a function that sets the grace, in seconds."""
    return lambda seconds: monkeypatch.setattr(departures, "GRACE_SECONDS", seconds)


async def submit(made: Engine, count: int) -> dict[str, list[int]]:
    """Start the engine and `count` requests, wait until some iterations have returned; return the expected tokens."""
    await made.engine.start()
    for index in range(count):
        made.submit(f"r{index}", (index + 1,), 40)
    await made.until(lambda: made.engine.snapshot.num_iterations > 2 * count)
    return {f"r{index}": continuation((index + 1,), 40) for index in range(count)}


async def iterations(made: Engine, count: int) -> None:
    """Wait until `count` further iterations have returned."""
    reached = made.engine.snapshot.num_iterations + count
    await made.until(lambda: made.engine.snapshot.num_iterations >= reached)


@pytest.mark.parametrize("partition", [0, 1, 2])
def test_requests_continue_on_another_pipeline_at_once(grace, partition):
    """Whichever worker leaves. The pipeline is formed again, and its report names the worker."""

    async def scene(made: Engine) -> None:
        expected = await submit(made, 8)
        left = made.cluster.newest("a")
        left.depart(partition)
        left.depart((partition + 1) % 3)  # not the first, so it changes nothing
        await made.until(lambda: left.calls == ["close"])
        assert await made.collect(8) == expected
        assert made.engine.snapshot.state is EngineState.SERVING
        await made.until(lambda: made.phase("a") is PipelinePhase.SERVING)
        assert {name: len(formed) for name, formed in made.cluster.formed.items()} == {"a": 2, "b": 1}
        (report, _) = made.engine.snapshot.pipelines
        assert (report.last_failure.reason, report.last_failure.worker) == (Reason.RECOVERING, f"a:{partition}")
        assert report.last_failure.message == f"worker a:{partition} is shutting down: it got a signal to end"

    grace(LONG)
    play(lambda: Engine(topology("a", "b", partitions=3), RESTARTED), scene)


def test_the_only_pipeline_computes_for_the_grace_and_is_then_given_up(grace):
    """New requests are served until then; afterwards all wait for the new worker."""

    async def scene(made: Engine) -> None:
        expected = await submit(made, 2)
        left = made.cluster.newest("a")
        grace(LONG)
        left.depart(0)
        made.submit("late", (7, 7), 5)
        await iterations(made, 10)
        assert (left.calls, made.engine.snapshot.state) == ([], EngineState.SERVING)
        assert await made.collect(3) == {**expected, "late": continuation((7, 7), 5)}
        left.hangs = True
        made.submit("waits", (8,), 5)
        made.cluster.newest("a").lose(KILLED)
        await made.until(lambda: len(made.cluster.formed["a"]) == 2)
        grace(SHORT)
        assert await made.collect(1) == {"waits": continuation((8,), 5)}
        made.submit("again", (9,), 50)
        made.cluster.newest("a").hangs = True
        made.cluster.newest("a").depart(0)
        await made.until(lambda: len(made.cluster.formed["a"]) == 3)
        assert await made.collect(1) == {"again": continuation((9,), 50)}

    play(lambda: Engine(topology("a"), RESTARTED), scene)


def test_a_grace_ends_with_its_formation(grace):
    """The pipeline is lost within the grace; the next formation is not given up when the grace is over."""

    async def scene(made: Engine) -> None:
        expected = await submit(made, 2)
        made.cluster.newest("a").depart(0)
        made.cluster.newest("a").lose(KILLED)
        assert await made.collect(2) == expected
        await asyncio.sleep(4 * SHORT)
        assert len(made.cluster.formed["a"]) == 2

    grace(SHORT)
    play(lambda: Engine(topology("a"), RESTARTED), scene)


@pytest.mark.parametrize("drains_first", [True, False])
@pytest.mark.parametrize("names", ["a", "ab"])
def test_a_draining_master_keeps_its_pipelines(grace, drains_first, names):
    """The requests finish on workers that are shutting down; a drain within the grace of the last pipeline suffices."""

    async def scene(made: Engine) -> None:
        expected = await submit(made, 4)
        if drains_first:
            made.engine.begin_drain()
        for name in names:
            made.cluster.newest(name).depart(0)
        made.engine.begin_drain()
        await asyncio.sleep(4 * SHORT)
        assert await made.collect(4) == expected
        moved = "a" if names == "ab" and not drains_first else ""  # b served when a was given up
        assert {name: len(made.cluster.formed[name]) for name in names} == {name: 1 + (name in moved) for name in names}

    grace(SHORT)
    play(lambda: Engine(topology(*names), RESTARTED), scene)


def test_the_last_pipeline_waits_for_another_and_is_then_given_up_at_once(grace):
    """All workers leave one after another, as in a rolling restart: one pipeline serves at all times."""

    async def scene(made: Engine) -> None:
        expected = await submit(made, 6)
        made.cluster.refusals["a"] = [WorkerLostError("not yet") for _ in range(20)]
        made.cluster.newest("a").depart(0)
        await made.until(lambda: len(made.cluster.formed["a"]) > 1)
        made.cluster.newest("b").depart(0)
        await iterations(made, 5)
        while made.cluster.refusals["a"]:
            assert len(made.cluster.formed["b"]) == 1, "given up although nothing else serves"
            await asyncio.sleep(0)
        await made.until(lambda: len(made.cluster.formed["b"]) == 2)
        assert made.engine.snapshot.state is EngineState.SERVING
        assert await made.collect(6) == expected
        await made.until(lambda: made.phase("b") is PipelinePhase.SERVING)
        assert len(made.cluster.formed["b"]) == 2

    grace(LONG)
    play(lambda: Engine(topology("a", "b"), RESTARTED), scene)


def test_where_nothing_restarts_workers_the_last_pipeline_computes_to_its_end(grace):
    async def scene(made: Engine) -> None:
        expected = await submit(made, 2)
        made.cluster.newest("a").depart(0)
        await asyncio.sleep(4 * SHORT)
        assert await made.collect(2) == expected
        assert made.engine.snapshot.state is EngineState.SERVING

    grace(SHORT)
    play(lambda: Engine(topology("a")), scene)


def test_a_departure_is_not_counted_against_requests(grace):
    """A request that meets departures only, more of them than losses would end it, is served to its end."""

    async def scene(made: Engine) -> None:
        made.cluster.hang = True
        await made.engine.start()
        made.submit("r", (5,), 9)
        for count in range(1, 6):
            workers = made.cluster.newest("a")
            await made.until(lambda: workers.receiver is not None and made.engine.snapshot.num_running == 1)  # noqa: B023
            made.cluster.hang = count < 5
            workers.depart(0)
            await made.until(lambda: len(made.cluster.formed["a"]) > count)  # noqa: B023
        assert await made.collect(1) == {"r": continuation((5,), 9)}

    grace(SHORT)
    play(lambda: Engine(topology("a"), RESTARTED), scene)


async def begin_large(made: Engine) -> None:
    """Let pipeline a compute a request for which pipeline b has too few slots."""
    made.cluster.sizes["b"] = 3
    await made.engine.start()
    made.submit("large", (1,) * 4, 60)
    await made.until(lambda: made.engine.snapshot.num_iterations > 2)


async def never(*_: object) -> None:
    await asyncio.get_running_loop().create_future()


@pytest.mark.parametrize("end", ["departs", "is killed"])
def test_a_request_that_needs_the_largest_pipeline_waits_for_its_return(grace, end):
    """The smaller pipeline serves on meanwhile."""

    async def scene(made: Engine) -> None:
        await begin_large(made)
        made.cluster.hang = True  # the next formation of the pipeline serves, but returns nothing yet
        if end == "departs":
            made.cluster.newest("a").depart(0)
        else:
            made.cluster.newest("a").lose(KILLED)
        made.submit("small", (2,), 10)
        await made.until(lambda: len(made.cluster.formed["a"]) == 2 and made.engine.snapshot.num_waiting == 0)
        await made.until(lambda: "small" not in made.engine.scheduler._pipeline_of)
        assert "large" in made.engine.scheduler._pipeline_of
        made.cluster.newest("a").hangs = False
        assert await made.collect(2) == {"small": continuation((2,), 10), "large": continuation((1,) * 4, 60)}

    grace(LONG)
    play(lambda: Engine(topology("a", "b"), RESTARTED), scene)


def test_the_time_for_a_return_begins_when_the_cause_of_the_loss_is_known():
    """No later failure follows that would end the wait: the next formation takes for ever."""

    async def scene(made: Engine) -> None:
        await begin_large(made)
        made.cluster.on_made = lambda workers: setattr(workers, "form", never)
        made.cluster.newest("a").conclusive_seconds = 1.5  # longer than the time from a loss to its only check was
        made.cluster.newest("a").lose(KILLED)
        assert "this server has 48" in str(await asyncio.wait_for(made.ended("large"), 60))

    config = EngineConfig(worker_owner=WorkerOwner.CLUSTER, recovery_timeout=0.1)
    play(lambda: Engine(topology("a", "b"), config), scene)


def test_while_a_request_waits_for_the_largest_pipeline_the_engine_is_not_stalled_and_then_batches_go_on():
    """Nothing can be computed meanwhile: a line of a batch waits behind the interactive request."""

    async def scene(made: Engine) -> None:
        await begin_large(made)
        assert made.engine.snapshot.stall_seconds < 2.0 + RETURN_SECONDS
        made.cluster.on_made = lambda workers: setattr(workers, "form", never)
        made.cluster.newest("a").lose(KILLED)
        await made.until(lambda: made.engine.snapshot.num_waiting == 1)
        made.engine.submit(dataclasses.replace(made.submission("line", (2,), 10), service_class=ServiceClass.BATCH))
        assert made.engine.snapshot.num_running == 0
        assert made.engine.snapshot.stall_seconds >= 2.0 + RETURN_SECONDS
        ended = {}
        async with asyncio.timeout(60):
            while len(ended) < 2:
                output = await made.outputs.get()
                if output.finish_reason is not None:
                    ended[output.request_id] = output.error
        assert "this server has 48" in ended["large"]
        assert ended["line"] is None
        assert made.engine.snapshot.stall_seconds < 2.0 + RETURN_SECONDS

    config = EngineConfig(worker_owner=WorkerOwner.CLUSTER, recovery_timeout=2.0)
    play(lambda: Engine(topology("a", "b"), config), scene)


def test_a_request_fails_when_the_largest_pipeline_has_not_returned_in_time():
    async def scene(made: Engine) -> None:
        await begin_large(made)
        made.cluster.refusals["a"] = [KILLED] * 1000
        made.cluster.newest("a").lose(KILLED)
        async with asyncio.timeout(60):
            while (output := await made.outputs.get()).finish_reason is None:
                pass
        assert output.error is not None
        assert "need 64 K/V slots (rounded to blocks of 16), this server has 48" in output.error

    config = EngineConfig(worker_owner=WorkerOwner.CLUSTER, recovery_timeout=0.0)
    play(lambda: Engine(topology("a", "b"), config), scene)
