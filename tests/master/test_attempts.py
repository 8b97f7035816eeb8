"""`Attempts`, alone and in an engine whose workers the parent of `orca serve` restarts."""

from __future__ import annotations

import asyncio

import pytest
from orca_contract.state import EngineState, PipelinePhase
from orca_master.engine import attempts as attempts_module
from orca_master.engine import supervisor as supervisor_module
from orca_master.engine.attempts import MAX_ATTEMPTS, STABLE_SECONDS, Attempts
from orca_master.engine.config import EngineConfig, WorkerOwner
from orca_master.engine.faults import WorkerLostError
from support.fake_engine import Engine, play, topology

CONFIG = EngineConfig(worker_owner=WorkerOwner.PARENT, recovery_timeout=60.0)
KILLED = WorkerLostError("worker a:1: killed")


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor_module, "RETRY_SECONDS", 0.001)


class Clock:
    """A clock that the test sets."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.mark.parametrize(("seconds", "result", "left"), [(1.0, False, False), (1.0, True, True), (60.0, False, True)])
def test_a_loss_before_any_progress_counts_as_a_failed_attempt(monkeypatch, seconds, result, left):
    assert seconds in (1.0, STABLE_SECONDS)
    clock = Clock()
    monkeypatch.setattr(attempts_module, "time", clock)
    attempts = Attempts()
    for _ in range(1 + MAX_ATTEMPTS):
        assert attempts.left
        attempts.note_serving()
        if result:
            attempts.note_result()
        clock.now += seconds
        attempts.note_failure()
    assert attempts.left == left


def test_a_lost_pipeline_of_orca_serve_is_formed_again_a_bounded_number_of_times():
    """The count starts again with a result of the pipeline. The last pipeline that is given up ends the engine."""
    absent = WorkerLostError("not there")

    async def scene(made: Engine) -> None:
        await made.engine.start()
        made.cluster.newest("b").hangs = True
        made.cluster.refusals["a"] = [absent] * (MAX_ATTEMPTS - 1)
        made.cluster.newest("a").lose(KILLED)
        await made.until(lambda: len(made.cluster.formed["a"]) == 1 + MAX_ATTEMPTS)
        await made.until(lambda: made.phase("a") is PipelinePhase.SERVING)
        assert made.cluster.newest("a").previous_num_blocks == made.cluster.newest("a").num_blocks > 0
        for index in range(40):
            made.submit(f"s{index}", (index + 1,), 2)
        await made.until(lambda: made.engine.snapshot.num_iterations > 0)
        made.cluster.newest("b").hangs = False
        await made.collect(40)
        made.cluster.refusals["a"] = [absent] * 100
        made.cluster.newest("a").lose(KILLED)
        await made.until(lambda: made.cluster.newest("a").calls == ["close"])
        await made.until(lambda: len(made.cluster.formed["a"]) == 1 + 2 * MAX_ATTEMPTS)
        assert made.engine.snapshot.state is EngineState.SERVING, "on b"
        made.cluster.newest("b").hangs = True
        made.submit("r", (5, 6), 40)
        await asyncio.sleep(0)
        made.cluster.refusals["b"] = [absent] * 100
        made.cluster.newest("b").lose(KILLED)
        assert await made.ended("r") == "pipeline b is lost: not there"
        await asyncio.wait_for(made.engine.failed.wait(), 30)
        assert made.engine.snapshot.state is EngineState.FAILED
        assert len(made.cluster.formed["a"]) == 1 + 2 * MAX_ATTEMPTS
        assert len(made.cluster.formed["b"]) == 1 + MAX_ATTEMPTS

    play(lambda: Engine(topology("a", "b"), CONFIG), scene)


def test_a_pipeline_that_is_lost_before_each_first_result_is_given_up():
    """As by a request that kills its worker, and that every formation computes again."""

    async def scene(made: Engine) -> None:
        await made.engine.start()
        for count in range(1, 2 + MAX_ATTEMPTS):
            await made.until(lambda count=count: len(made.cluster.formed["a"]) == count)
            await made.until(lambda: made.phase("a") is PipelinePhase.SERVING)
            made.cluster.newest("a").lose(KILLED)
        await asyncio.wait_for(made.engine.failed.wait(), 30)
        assert made.engine.snapshot.state is EngineState.FAILED
        assert made.engine.snapshot.failure == "pipeline a is lost: worker a:1: killed"
        assert len(made.cluster.formed["a"]) == 1 + MAX_ATTEMPTS

    play(lambda: Engine(topology("a"), CONFIG), scene)
