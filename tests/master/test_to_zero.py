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
from orca_master.engine.engine_client import EngineStatus
from orca_master.engine.engine_thread import EngineThread
from orca_master.engine.faults import WorkerLostError
from orca_master.engine.messages import Submission
from orca_master.engine.pipeline_set import NO_PIPELINES, RequestsUnfinishedError
from orca_master.engine.progress import Progress
from orca_master.engine.recovery import Recovery
from orca_master.errors import ConfigurationError, EngineUnavailableError, QueueFullError, RequestError
from orca_master.journal.status import no_journal
from orca_master.metrics.prometheus import Metrics
from orca_master.scheduling.sampling_parameters import SamplingParameters
from support.fake_engine import Engine, play, topology
from support.fake_workers import MAX_MODEL_LEN, continuation

CLUSTER = EngineConfig(worker_owner=WorkerOwner.CLUSTER, recovery_timeout=60.0, max_queued_requests=20)
NONE = topology()
PAUSED = NONE.model_copy(update={"closed": "spec.replicas is 0"})


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
        for empty in (NONE, PAUSED):
            with pytest.raises(RequestsUnfinishedError, match="the last pipeline stays"):
                await made.engine.apply(empty)
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
        with pytest.raises(EngineUnavailableError, match="scaled to zero: no pipeline serves"):
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


def test_a_cancelled_request_leaves_no_wait_behind():
    async def scene(made: Engine) -> None:
        await made.engine.start()
        await made.engine.apply(NONE)
        made.submit("cancelled", (1,), 2)
        made.engine.cancel("cancelled")
        assert made.engine._patience._timer is None
        assert not made.engine.demand.exists.is_set()
        await made.engine.apply(topology("a"))
        await made.until(lambda: made.engine.snapshot.state is EngineState.SERVING)

    play(lambda: Engine(topology("a"), CLUSTER), scene)


def test_the_backlog_is_what_came_before_a_pipeline_served_again():
    """By it the operator keeps an old revision that serves only because its requests have woken it up."""

    async def scene(made: Engine) -> None:
        def backlog() -> bool:
            return made.engine.snapshot.has_backlog

        await made.engine.start()
        made.submit("ordinary", (1,), 20)
        assert not backlog()
        assert await made.collect(1) == {"ordinary": continuation((1,), 20)}
        await made.engine.apply(NONE)
        assert not backlog()
        made.submit("first", (2,), 20)
        assert backlog()
        made.cluster.hang = True
        await made.engine.apply(topology("a"))
        made.submit("second", (3,), 2)
        await made.until(lambda: made.engine.snapshot.state is EngineState.SERVING)
        assert backlog(), "neither is answered yet"
        made.submit("later", (4,), 60)
        made.cluster.newest("a").hangs = False
        async with asyncio.timeout(60):
            while backlog():
                await asyncio.sleep(0)  # sees every iteration: the later one has 40 more
        assert made.engine.snapshot.num_running == 1, "the later one, which any serving master may get"
        assert len(await made.collect(3)) == 3

    play(lambda: Engine(topology("a"), CLUSTER), scene)


def test_a_closed_engine_answers_what_it_has_accepted_then_lets_its_pipelines_go():
    async def scene(made: Engine) -> None:
        await made.engine.start()
        made.submit("runs", (7,), 50)
        await made.engine.apply(topology("a").model_copy(update={"closed": "spec.replicas is 0"}))
        with pytest.raises(EngineUnavailableError, match=r"^spec\.replicas is 0$"):
            made.submit("refused", (1,), 2)
        assert await made.collect(1) == {"runs": continuation((7,), 50)}
        await made.engine.apply(PAUSED)
        snapshot = made.engine.snapshot
        assert (snapshot.state, snapshot.failure) == (EngineState.PAUSED, "spec.replicas is 0")
        with pytest.raises(EngineUnavailableError, match=r"^spec\.replicas is 0$"):
            made.submit("refused", (1,), 2)
        await made.engine.apply(topology("a"))
        made.submit("waits", (1,), 2)
        assert await made.collect(1) == {"waits": continuation((1,), 2)}
        assert made.engine.snapshot.state is EngineState.SERVING

    play(lambda: Engine(topology("a"), CLUSTER), scene)


def test_requests_that_wait_without_pipelines_learn_why_the_engine_closes():
    async def scene(made: Engine) -> None:
        await made.engine.start()
        await made.engine.apply(NONE)
        made.submit("waits", (1,), 2)
        await made.engine.apply(PAUSED)
        assert await made.ended("waits") == "spec.replicas is 0"
        await made.engine.apply(NONE)
        made.submit("waits again", (1,), 2)
        await made.engine.apply(topology("a"))
        assert await made.collect(1) == {"waits again": continuation((1,), 2)}

    play(lambda: Engine(topology("a"), CLUSTER), scene)


def test_an_engine_that_never_served_may_be_paused():
    """`spec.replicas: 0` from the beginning: it needs no limits to refuse every request."""

    async def scene(made: Engine) -> None:
        made.cluster.refusals["a"] = [WorkerLostError("no pod")] * 100_000
        start = asyncio.create_task(made.engine.start())
        await made.until(lambda: bool(made.engine.snapshot.pipelines))
        await made.engine.apply(PAUSED)
        assert made.engine.snapshot.state is EngineState.PAUSED
        made.cluster.refusals["a"] = []
        await made.engine.apply(topology("a"))
        await start
        made.submit("r", (1,), 2)
        assert await made.collect(1) == {"r": continuation((1,), 2)}

    play(lambda: Engine(topology("a"), CLUSTER), scene)


@pytest.mark.parametrize(
    ("state", "draining", "refusal", "ready"),
    [
        (EngineState.PAUSED, False, "paused: spec.replicas is 0", True),
        (EngineState.PAUSED, True, "draining: the server is shutting down", False),
        (EngineState.LOADING, False, "loading: spec.replicas is 0", False),
    ],
)
def test_a_paused_engine_is_ready_to_say_why_it_refuses(state, draining, refusal, ready):
    """A Service without ready pods refuses connections: then nobody learns why."""
    status = EngineStatus(state, "spec.replicas is 0", draining, 9, 9, 9, Progress(), 9, 9, Recovery())
    assert (status.unavailable, not status.not_ready) == (refusal, ready)


class Anyone:
    """Accepts every token."""

    @staticmethod
    def matches(_token: str) -> bool:
        return True


def serve(engine: EngineThread) -> None:
    """Let the engine be in the state of a pipeline that begins to serve now."""
    engine.engine._progressed_at = time.monotonic()
    engine.engine._enter(EngineState.SERVING)


def test_the_operator_learns_of_a_request_at_once_and_how_long_there_has_been_none():
    """`GET /state?wait=60` of an idle master. Neither loading nor refused requests count as requests or idleness."""

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
            while after["waiting"]:  # the engine's thread learns of the release later
                after = (await client.get("/state")).json()
            assert after["idle"]
            assert 0 <= after["idleSeconds"] <= time.monotonic() - released + 0.001, "counted from the release"
            assert (await client.get("/state", params={"wait": 61})).status_code == 422
        await engine.stop("the test ends")

    asyncio.run(run())


def test_the_admin_port_removes_the_last_pipeline_or_says_why_not():
    """409: never in this state. 423: not while requests are unfinished."""

    async def run() -> None:
        metrics = Metrics("m")
        engine = EngineThread(topology("a"), EngineConfig(max_queued_requests=1), metrics, metrics)
        engine._thread.start()
        transport = httpx.ASGITransport(create_admin_app(engine, Anyone(), no_journal))  # type: ignore[arg-type]
        headers = {"Authorization": "Bearer any"}
        async with httpx.AsyncClient(transport=transport, base_url="http://master", headers=headers) as client:
            submission = Submission("r2", (1,), 4, SamplingParameters(), frozenset())
            await engine.submit(submission, lambda output: None)
            body = {**(await client.get("/state")).json()["topology"], "pipelines": []}
            assert (await client.put("/topology", json=body)).status_code == 409, "no pipeline has served"
            closed = {**body, "closed": "spec.replicas is 0"}
            answer = await client.put("/topology", json=closed)
            assert (answer.status_code, "1 requests are unfinished" in answer.text) == (423, True)
            engine.release("r2", "abort")
            while (answer := await client.put("/topology", json=closed)).status_code == 423:
                pass
            assert (answer.json()["state"], answer.json()["topology"]["closed"]) == ("paused", "spec.replicas is 0")
        await engine.stop("the test ends")

    asyncio.run(run())
