"""`EngineMaster` without pipelines: requests wait for the next one, whenever they come, and for a bounded time."""

from __future__ import annotations

import asyncio
import dataclasses

import httpx
import pytest
from orca_contract.state import EngineState
from orca_master.commands.topology_file import read_topology
from orca_master.endpoint.admin import create_admin_app
from orca_master.engine.config import EngineConfig, WorkerOwner
from orca_master.engine.engine_thread import EngineThread
from orca_master.engine.faults import WorkerLostError
from orca_master.engine.messages import Submission
from orca_master.engine.pipeline_set import NO_PIPELINES
from orca_master.errors import ConfigurationError, QueueFullError, RequestError
from orca_master.journal.status import no_journal
from orca_master.metrics.prometheus import Metrics
from orca_master.scheduling.sampling_parameters import SamplingParameters
from support.fake_engine import Engine, play, topology
from support.fake_workers import MAX_MODEL_LEN, continuation

CLUSTER = EngineConfig(worker_owner=WorkerOwner.CLUSTER, recovery_timeout=60.0, max_queued_requests=20)
NONE = topology()


def test_requests_wait_for_a_pipeline_up_to_the_bound_of_the_queue():
    async def scene(made: Engine) -> None:
        await made.engine.start()
        await made.engine.apply(NONE)
        snapshot = made.engine.snapshot
        assert (snapshot.state, snapshot.failure, snapshot.pipelines) == (EngineState.RECOVERING, NO_PIPELINES, ())
        prompts = {f"r{index}": (index + 1,) for index in range(20)}
        for name, prompt in prompts.items():
            made.submit(name, prompt, 10)
        assert made.engine.snapshot.num_waiting == 20
        assert made.engine.snapshot.recovery.accepts(1e9), "the time of a wake-up refuses nothing"
        with pytest.raises(QueueFullError):
            made.submit("one more", (1,), 10)
        with pytest.raises(RequestError, match="context"):  # the limits of the pipelines before hold on
            made.submit("too long", (1,) * MAX_MODEL_LEN, 1)
        await made.engine.apply(topology("a"))
        assert await made.collect(20) == {name: continuation(prompt, 10) for name, prompt in prompts.items()}
        assert made.engine.snapshot.state is EngineState.SERVING
        made.assert_nothing_held()

    play(lambda: Engine(topology("a"), CLUSTER), scene)


@pytest.mark.parametrize("turns", range(12))
def test_a_request_that_comes_while_the_last_pipeline_leaves_gets_all_its_tokens(turns):
    """Before, during and after the edit: it runs on the old pipeline, is rewound, or waits for the next one."""

    async def scene(made: Engine) -> None:
        await made.engine.start()
        leaving = asyncio.create_task(made.engine.apply(NONE))
        for _ in range(turns):
            await asyncio.sleep(0)
        made.submit("late", (3, 4), 40)
        await leaving
        assert made.engine.snapshot.num_waiting == 1, "40 tokens take longer than the edit"
        await made.engine.apply(topology("a"))
        assert await made.collect(1) == {"late": continuation((3, 4), 40)}

    play(lambda: Engine(topology("a"), CLUSTER), scene)


def test_a_running_request_waits_for_the_next_pipeline():
    async def scene(made: Engine) -> None:
        await made.engine.start()
        made.submit("runs", (7,), 50)
        await made.until(lambda: made.engine.snapshot.num_iterations > 4)
        await made.engine.apply(NONE)
        await made.engine.apply(topology("b"))
        assert await made.collect(1) == {"runs": continuation((7,), 50)}

    play(lambda: Engine(topology("a"), CLUSTER), scene)


@pytest.mark.parametrize("loses", [True, False])
def test_the_wait_without_pipelines_has_the_bound_of_a_recovery(loses):
    """Also if pipelines were added and do not form; the next request waits anew."""

    async def scene(made: Engine) -> None:
        await made.engine.start()
        await made.engine.apply(NONE)
        if loses:
            made.cluster.refusals["a"] = [WorkerLostError("no node")] * 100_000
            await made.engine.apply(topology("a"))
        for name in ("first", "second"):
            made.submit(name, (1,), 2)
            assert await made.ended(name) == NO_PIPELINES
        made.cluster.refusals["a"] = []
        made.engine.reconfigure(CLUSTER)
        made.submit("third", (1,), 2)
        await made.engine.apply(topology("a"))
        assert await made.collect(1) == {"third": continuation((1,), 2)}

    play(lambda: Engine(topology("a"), dataclasses.replace(CLUSTER, recovery_timeout=0.05)), scene)


def test_an_idle_wait_ends_nothing():
    async def scene(made: Engine) -> None:
        await made.engine.start()
        await made.engine.apply(NONE)
        await asyncio.sleep(0.2)  # several times the bound
        made.engine.reconfigure(CLUSTER)
        made.submit("late", (1,), 2)
        await made.engine.apply(topology("a"))
        assert await made.collect(1) == {"late": continuation((1,), 2)}

    play(lambda: Engine(topology("a"), dataclasses.replace(CLUSTER, recovery_timeout=0.05)), scene)


def test_a_pipeline_that_is_being_formed_again_may_leave():
    async def scene(made: Engine) -> None:
        await made.engine.start()
        made.cluster.refusals["a"] = [WorkerLostError("no node")] * 100_000
        made.cluster.newest("a").lose(WorkerLostError("killed"))
        await made.until(lambda: made.engine.snapshot.state is EngineState.RECOVERING)
        await made.engine.apply(NONE)
        assert made.engine.snapshot.failure == NO_PIPELINES
        made.submit("r", (1,), 2)
        await made.engine.apply(topology("b"))
        assert await made.collect(1) == {"r": continuation((1,), 2)}

    play(lambda: Engine(topology("a"), CLUSTER), scene)


def test_an_engine_that_never_served_needs_a_pipeline(tmp_path):
    """Only a pipeline reports the limits by which requests are checked."""

    async def scene(made: Engine) -> None:
        with pytest.raises(ConfigurationError, match="`pipelines` can be empty only after one of them has served"):
            await made.engine.apply(NONE)

    play(lambda: Engine(topology("a"), CLUSTER), scene)
    file = tmp_path / "topology.json"
    file.write_text(NONE.model_dump_json(by_alias=True))
    with pytest.raises(ConfigurationError, match="pipelines: a master starts with at least one pipeline"):
        read_topology(file)


def test_the_operator_learns_of_a_request_at_once_and_how_long_there_has_been_none():
    """`GET /state?wait=60` of an idle master; the release of the last request begins the time without requests."""

    class Anyone:
        @staticmethod
        def matches(_token: str) -> bool:
            return True

    async def run() -> None:
        metrics = Metrics("m")
        engine = EngineThread(topology("a"), EngineConfig(), metrics, metrics)
        engine._thread.start()
        transport = httpx.ASGITransport(create_admin_app(engine, Anyone(), no_journal))  # type: ignore[arg-type]
        headers = {"Authorization": "Bearer any"}
        async with httpx.AsyncClient(transport=transport, base_url="http://master", headers=headers) as client:
            before = (await client.get("/state", params={"wait": 0.01})).json()
            assert before["idle"]
            assert before["idleSeconds"] >= 0.01
            asked = asyncio.create_task(client.get("/state", params={"wait": 60}))
            await asyncio.sleep(0.05)
            assert not asked.done()
            submission = Submission("r", (1,), 4, SamplingParameters(), frozenset())
            accepted = engine.submit(submission, lambda output: None)
            async with asyncio.timeout(30):
                report = (await asked).json()
            assert (report["idle"], report["idleSeconds"]) == (False, 0.0)
            await accepted
            engine.release("r", "abort")
            after = (await client.get("/state")).json()
            assert after["idle"]
            assert after["idleSeconds"] < before["idleSeconds"] + 0.05, "counted from the release"
            assert (await client.get("/state", params={"wait": 61})).status_code == 422
        await engine.stop("the test ends")

    asyncio.run(run())
