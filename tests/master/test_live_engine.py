"""`EngineMaster.reconfigure` while requests run or wait: timeouts, admission and the order of requests."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest
from orca_contract.state import EngineState, PipelinePhase
from orca_master.engine import supervisor as supervisor_module
from orca_master.engine.config import LONGEST_SECONDS, EngineConfig, WorkerOwner
from orca_master.engine.faults import WorkerLostError
from orca_master.errors import RequestError
from orca_master.scheduling.kv_ledger import LEDGERS
from support.fake_engine import Engine, play, topology
from support.fake_workers import continuation

START = EngineConfig(worker_owner=WorkerOwner.CLUSTER, recovery_timeout=600.0, stall_timeout=600.0, max_batch_size=4)
KILLED = WorkerLostError("worker a:0: killed")


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor_module, "RETRY_SECONDS", 0.001)


def test_a_shorter_stall_timeout_ends_the_iteration_that_hangs_now_and_holds_for_the_next_formation():
    async def scene(made: Engine) -> None:
        await made.engine.start()
        made.cluster.newest("a").hangs = True
        made.submit("r", (5, 6), 4)
        await made.until(lambda: made.engine.snapshot.num_running == 1)
        made.engine.reconfigure(dataclasses.replace(START, stall_timeout=0.05))
        assert await made.collect(1) == {"r": continuation((5, 6), 4)}
        assert len(made.cluster.formed["a"]) == 2
        assert made.engine.snapshot.stall_seconds == 0.05

    play(lambda: Engine(topology("a"), START), scene)


def test_the_ranks_of_a_formation_wait_as_long_as_any_automatic_stall_timeout():
    """The stall timeout can grow during the formation; the ranks learn their timeout when they are formed."""
    for stall_timeout, seconds in ((None, LONGEST_SECONDS), (5.0, LONGEST_SECONDS), (900.0, 900.0)):
        assert EngineConfig(stall_timeout=stall_timeout).rank_timeout == seconds


def test_a_shorter_recovery_timeout_ends_the_requests_that_wait_for_a_lost_pipeline():
    async def scene(made: Engine) -> None:
        await made.engine.start()
        made.cluster.newest("a").hangs = True
        made.submit("r", (5, 6), 40)
        made.cluster.refusals["a"] = [WorkerLostError("not there")] * 100_000
        made.cluster.newest("a").lose(KILLED)
        await made.until(lambda: made.engine.snapshot.state is EngineState.RECOVERING)
        made.engine.reconfigure(dataclasses.replace(START, recovery_timeout=0.01))
        assert await made.ended("r") == "pipeline a is lost: worker a:0: killed"
        made.cluster.refusals["a"].clear()
        await made.until(lambda: made.engine.snapshot.state is EngineState.SERVING)
        made.submit("next", (1,), 2)
        assert await made.collect(1) == {"next": continuation((1,), 2)}

    play(lambda: Engine(topology("a"), START), scene)


def test_a_shorter_recovery_timeout_ends_a_request_that_waits_for_the_larger_pipeline():
    async def scene(made: Engine) -> None:
        made.cluster.sizes["b"] = 3
        await made.engine.start()
        made.cluster.newest("a").hangs = True
        made.submit("large", (5, 6), 60)  # four blocks
        made.submit("small", (5, 6), 8)
        await made.until(lambda: made.engine.snapshot.num_running == 2)
        made.cluster.refusals["a"] = [WorkerLostError("not there")] * 100_000
        made.cluster.newest("a").lose(KILLED)
        assert await made.collect(1) == {"small": continuation((5, 6), 8)}
        assert made.engine.snapshot.num_waiting == 1, "as long as the larger pipeline is expected back"
        made.engine.reconfigure(dataclasses.replace(START, recovery_timeout=0.01))
        assert "K/V" in str(await made.ended("large"))

    play(lambda: Engine(topology("a", "b"), START), scene)


@pytest.mark.parametrize("partitions", [1, 2])
def test_admission_changes_under_load_and_all_requests_get_their_tokens(partitions):
    async def scene(made: Engine) -> None:
        await made.engine.start()
        prompts = {f"r{index}": tuple(range(1, 2 + index % 7)) for index in range(24)}
        for name, prompt in prompts.items():
            made.submit(name, prompt, 30)
        for admission in ("paged", "reserve") * 3:
            seen = made.engine.snapshot.num_iterations
            await made.until(lambda: made.engine.snapshot.num_iterations > seen + 8)  # noqa: B023  # awaited here
            made.engine.reconfigure(dataclasses.replace(START, admission=admission))
        assert made.engine.snapshot.num_running > 0
        tokens = await made.collect(len(prompts))
        assert tokens == {name: continuation(prompt, 30) for name, prompt in prompts.items()}
        made.assert_nothing_held()
        made.engine.reconfigure(dataclasses.replace(START, admission="paged"))
        made.cluster.newest("a").lose(KILLED)
        await made.until(lambda: len(made.cluster.formed["a"]) == 2 and made.phase("a") is PipelinePhase.SERVING)
        assert type(made.engine.scheduler.ledger("a")) is LEDGERS["paged"], "also of the next formation"

    play(lambda: Engine(topology("a", partitions=partitions), START, num_blocks=7), scene)


def test_the_policy_decides_who_is_next_and_whether_priorities_are_accepted():
    async def scene(made: Engine) -> None:
        await made.engine.start()
        one_by_one = dataclasses.replace(START, max_batch_size=1)
        urgent = dataclasses.replace(one_by_one, scheduling_policy="priority")
        made.cluster.newest("a").hangs = True
        made.submit("runs", (1,), 4)
        with pytest.raises(RequestError, match="--scheduling-policy priority"):
            made.engine.submit(made.submission("refused", (2,), 4, priority=-5))
        made.engine.reconfigure(urgent)
        for name, priority in (("late", 5), ("soon", -5)):
            made.engine.submit(made.submission(name, (3,), 4, priority=priority))
        assert [request.request_id for request in made.engine.pool] == ["soon", "late"]
        made.engine.reconfigure(one_by_one)
        assert [request.request_id for request in made.engine.pool] == ["late", "soon"]
        resumed = dataclasses.replace(made.submission("resumed", (4,), 4, priority=-5), generated=())
        made.engine.submit(resumed)  # an earlier master accepted it, under another policy
        made.cluster.newest("a").hangs = False
        expected = {"runs": (1,), "late": (3,), "soon": (3,), "resumed": (4,)}
        assert await made.collect(4) == {name: continuation(prompt, 4) for name, prompt in expected.items()}

    play(lambda: Engine(topology("a"), dataclasses.replace(START, max_batch_size=1)), scene)


def test_a_pipeline_that_is_added_during_a_change_gets_the_new_timeouts():
    """`apply` waits for the end of a removed pipeline; the change comes meanwhile."""

    async def scene(made: Engine) -> None:
        await made.engine.start()
        leaving = made.cluster.newest("a")
        entered, may_end = asyncio.Event(), asyncio.Event()

        async def close() -> None:
            entered.set()
            await may_end.wait()

        leaving.close = close  # type: ignore[method-assign]
        applying = asyncio.create_task(made.engine.apply(topology("b", "c")))
        await entered.wait()
        made.engine.reconfigure(dataclasses.replace(START, stall_timeout=0.05))
        may_end.set()
        await applying
        await made.until(lambda: made.phase("c") is PipelinePhase.SERVING)
        assert made.engine.snapshot.stall_seconds == 0.05

    play(lambda: Engine(topology("a", "b"), START), scene)
