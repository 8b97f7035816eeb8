"""`EngineMaster` without pipelines: requests wait for the next one, whenever they come, and for a bounded time."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Awaitable

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
from orca_master.errors import ConfigurationError, EngineUnavailableError, QueueFullError, RequestError
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
    """Before the edit it keeps the pipeline; during and after it, it is rewound or waits for the next one."""

    async def scene(made: Engine) -> None:
        await made.engine.start()
        leaving = asyncio.create_task(made.engine.apply(NONE))
        for _ in range(turns):
            await asyncio.sleep(0)
        made.submit("late", (3, 4), 40)
        (refusal,) = await asyncio.gather(leaving, return_exceptions=True)
        if refusal is not None:
            assert "the last pipeline stays: 1 requests are unfinished" in str(refusal)
        else:
            assert made.engine.snapshot.num_waiting == 1, "40 tokens take longer than the edit"
            await made.engine.apply(topology("a"))
        assert await made.collect(1) == {"late": continuation((3, 4), 40)}

    play(lambda: Engine(topology("a"), CLUSTER), scene)


def test_the_last_pipeline_stays_while_a_request_is_unfinished():
    """The report of idleness by which the operator removes it is older than the request."""

    async def scene(made: Engine) -> None:
        await made.engine.start()
        made.submit("runs", (7,), 50)
        await made.until(lambda: made.engine.snapshot.num_iterations > 4)
        with pytest.raises(ConfigurationError, match="the last pipeline stays"):
            await made.engine.apply(NONE)
        assert made.engine.snapshot.state is EngineState.SERVING
        assert await made.collect(1) == {"runs": continuation((7,), 50)}
        await made.engine.apply(NONE)
        assert made.engine.snapshot.failure == NO_PIPELINES

    play(lambda: Engine(topology("a"), CLUSTER), scene)


def test_a_refused_request_begins_no_wait():
    async def scene(made: Engine) -> None:
        await made.engine.start()
        await made.engine.apply(NONE)
        with pytest.raises(RequestError, match="context"):
            made.submit("too long", (1,) * MAX_MODEL_LEN, 1)
        assert made.engine._patience._timer is None
        made.submit("fits", (1,), 2)
        assert made.engine._patience._timer is not None
        await made.engine.apply(topology("a"))
        assert await made.collect(1) == {"fits": continuation((1,), 2)}

    play(lambda: Engine(topology("a"), CLUSTER), scene)


def test_the_wait_without_pipelines_has_the_bound_of_a_recovery_and_the_next_request_waits_anew():
    async def scene(made: Engine) -> None:
        await made.engine.start()
        await made.engine.apply(NONE)
        for name in ("first", "second"):
            made.submit(name, (1,), 2)
            assert await made.ended(name) == NO_PIPELINES
        made.engine.reconfigure(CLUSTER)
        made.submit("third", (1,), 2)
        await made.engine.apply(topology("a"))
        assert await made.collect(1) == {"third": continuation((1,), 2)}

    play(lambda: Engine(topology("a"), dataclasses.replace(CLUSTER, recovery_timeout=0.05)), scene)


def test_a_wake_up_that_fails_refuses_requests_until_a_pipeline_serves():
    """Else a broken revision would keep requests for ever that its successor could serve."""

    async def scene(made: Engine) -> None:
        await made.engine.start()
        await made.engine.apply(NONE)
        made.cluster.refusals["a"] = [WorkerLostError("no node")] * 100_000
        made.submit("first", (1,), 2)
        await made.engine.apply(topology("a"))
        assert await made.ended("first") == NO_PIPELINES
        assert not made.engine.snapshot.recovery.accepts(1e9)
        with pytest.raises(EngineUnavailableError, match="no pipeline was ready in time"):
            made.submit("second", (1,), 2)
        made.cluster.refusals["a"] = []
        await made.until(lambda: made.engine.snapshot.state is EngineState.SERVING)
        made.submit("third", (1,), 2)
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


def serve(engine: EngineThread) -> None:
    """Let the engine be in the state of a pipeline that begins to serve now."""
    engine.engine._progressed_at = time.monotonic()
    engine.engine._enter(EngineState.SERVING)


def test_the_operator_learns_of_a_request_at_once_and_how_long_there_has_been_none():
    """`GET /state?wait=60` of an idle master. Neither loading nor refused requests count as requests or idleness."""

    class Anyone:
        @staticmethod
        def matches(_token: str) -> bool:
            return True

    async def run() -> None:
        metrics = Metrics("m")
        engine = EngineThread(topology("a"), EngineConfig(max_queued_requests=1), metrics, metrics)
        engine._thread.start()
        transport = httpx.ASGITransport(create_admin_app(engine, Anyone(), no_journal))  # type: ignore[arg-type]
        headers = {"Authorization": "Bearer any"}

        def submit(name: str) -> Awaitable[None]:
            submission = Submission(name, (1,), 4, SamplingParameters(), frozenset())
            return engine.submit(submission, lambda output: None)

        async with httpx.AsyncClient(transport=transport, base_url="http://master", headers=headers) as client:
            before = (await client.get("/state", params={"wait": 0.01})).json()
            assert (before["idle"], before["idleSeconds"]) == (True, 0.0), "it loads"
            serve(engine)
            before = (await client.get("/state", params={"wait": 0.05})).json()
            assert 0.05 <= before["idleSeconds"] < 5, "counted from the begin of serving"
            asked = asyncio.create_task(client.get("/state", params={"wait": 60}))
            await asyncio.sleep(0.05)
            assert not asked.done()
            with pytest.raises(RequestError):
                await engine.submit(
                    Submission("wrong", (1,), 4, SamplingParameters(), frozenset(), priority=1), lambda output: None
                )
            assert engine.idle_seconds > before["idleSeconds"]
            engine.release("wrong", None)
            await asyncio.sleep(0.05)
            assert not asked.done(), "a refused request is none"
            assert engine.idle_seconds > before["idleSeconds"]
            await submit("r")
            async with asyncio.timeout(30):
                report = (await asked).json()
            assert (report["idle"], report["waiting"], report["idleSeconds"]) == (False, 1, 0.0)
            with pytest.raises(QueueFullError):
                await submit("full")
            engine.release("full", None)
            assert engine.idle_seconds == 0.0
            released = time.monotonic()
            engine.release("r", "abort")
            after = (await client.get("/state")).json()
            assert after["idle"]
            assert 0 <= after["idleSeconds"] <= time.monotonic() - released + 0.001, "counted from the release"
            assert (await client.get("/state", params={"wait": 61})).status_code == 422
            await submit("r2")
            body = {**after["topology"], "pipelines": []}
            assert (await client.put("/topology", json=body)).status_code == 409, "no pipeline has served"
            engine.release("r2", "abort")
        await engine.stop("the test ends")

    asyncio.run(run())
