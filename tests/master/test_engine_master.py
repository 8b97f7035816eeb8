"""`EngineMaster` over workers in this process: requests, lost pipelines, and edits of the topology, in milliseconds."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Callable
from types import SimpleNamespace

import pytest
from orca_contract.reasons import Reason
from orca_contract.state import EngineState, PipelinePhase
from orca_contract.topology import PipelineSpec
from orca_master.engine import dispatcher, live_requests
from orca_master.engine import supervisor as supervisor_module
from orca_master.engine.attempts import MAX_ATTEMPTS
from orca_master.engine.config import EngineConfig, WorkerOwner
from orca_master.engine.faults import WorkerLostError
from orca_master.errors import ConfigurationError, EngineUnavailableError, QueueFullError, RequestError
from support.fake_engine import Engine, play, topology
from support.fake_workers import BYTES, MAX_MODEL_LEN, continuation

RESTARTED = EngineConfig(worker_owner=WorkerOwner.CLUSTER, recovery_timeout=60.0)
KILLED = WorkerLostError("worker a:1: killed", Reason.WORKER_OOM_KILLED, "a:1")


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor_module, "RETRY_SECONDS", 0.001)


@pytest.mark.parametrize("partitions", [1, 3])
@pytest.mark.parametrize("lookahead", [True, False])
def test_all_requests_get_their_tokens_whatever_runs_beside_them(partitions, lookahead):
    async def scene(made: Engine) -> None:
        await made.engine.start()
        prompts = {f"r{index}": tuple(range(1, 2 + index % 7)) for index in range(40)}
        for name, prompt in prompts.items():
            made.submit(name, prompt, 20)
        tokens = await made.collect(len(prompts))
        assert tokens == {name: continuation(prompt, 20) for name, prompt in prompts.items()}
        made.assert_nothing_held()
        snapshot = made.engine.snapshot
        assert (snapshot.state, snapshot.failure, snapshot.cache_usage) == (EngineState.SERVING, "", 0.0)
        assert snapshot.num_iterations == len(made.batches) > 20

    config = EngineConfig(max_batch_size=4, token_budget=8, lookahead=lookahead)
    play(lambda: Engine(topology("a", "b", partitions=partitions), config), scene)


def test_the_first_token_of_a_request_is_reported_with_its_times(monkeypatch):
    """A clock of iterations. Two blocks hold one request: the second waits for the end of the first."""
    clock = SimpleNamespace(now=0)
    for module in (dispatcher, live_requests):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock.now))

    async def scene(made: Engine) -> None:
        send = made.on_dispatch

        def on_dispatch(sequence: int, batch) -> None:
            send(sequence, batch)
            clock.now += 1

        made.on_dispatch = on_dispatch  # type: ignore[method-assign]
        await made.engine.start()
        assert made.engine.snapshot.num_blocks == 2
        made.submit("first", (1,), 30)
        made.submit("second", (2, 3), 5)
        assert clock.now == 1, "the first is admitted at once, at 0; the second arrives at 1"
        await made.collect(2)
        assert made.first_tokens == [(0, 1), (29, 1)]

    play(lambda: Engine(topology("a"), EngineConfig(lookahead=False), num_blocks=2), scene)


def test_a_rewound_request_has_one_first_token():
    async def scene(made: Engine) -> None:
        await made.engine.start()
        assert made.engine.snapshot.num_blocks == 2 * 64, "of all pipelines"
        made.submit("one", (1,), 40)
        await made.until(lambda: len(made.first_tokens) == 1)
        (pipeline,) = set(made.engine.scheduler._pipeline_of.values())
        made.cluster.newest(pipeline).lose(KILLED)
        await made.collect(1)
        assert {batch.pipeline for _, batch in made.batches} == {"a", "b"}
        assert len(made.first_tokens) == 1

    play(lambda: Engine(topology("a", "b"), num_blocks=64), scene)


def test_requests_of_a_lost_pipeline_continue_on_another():
    async def scene(made: Engine) -> None:
        await made.engine.start()
        for index in range(8):
            made.submit(f"r{index}", (index + 1,), 40)
        await made.until(lambda: made.engine.snapshot.num_iterations > 8)
        made.cluster.newest("a").lose(KILLED)
        tokens = await made.collect(8)
        assert tokens == {f"r{index}": continuation((index + 1,), 40) for index in range(8)}
        await made.until(lambda: made.phase("a") is PipelinePhase.SERVING)
        (report, _) = made.engine.snapshot.pipelines
        assert report.last_failure is not None
        assert (report.last_failure.reason, report.last_failure.worker) == (Reason.WORKER_OOM_KILLED, "a:1")
        assert report.last_failure.recovery_seconds is not None
        assert made.cluster.formed["a"][0].calls == ["close"], "the workers are not the engine's to end"

    play(lambda: Engine(topology("a", "b"), RESTARTED), scene)


def test_while_the_engine_loads_the_snapshot_has_what_all_pipelines_have_read():
    async def scene(made: Engine) -> None:
        publish, readings = made.engine.on_change, []

        def record() -> None:
            publish()
            readings.append(made.engine.snapshot.loaded_bytes)

        made.engine.on_change = record
        await made.engine.start()
        assert max(readings) == (4 * BYTES, 4 * BYTES)
        assert (BYTES, 2 * BYTES) in readings, "of one pipeline, when the other one has not begun"
        assert readings[-1] == (0, 0)

    play(lambda: Engine(topology("a", "b")), scene)


def test_a_pipeline_that_serves_again_is_logged_beside_its_loss(caplog):
    """Of the first formation the report of the start says more, so its line is a detail."""

    async def scene(made: Engine) -> None:
        await made.engine.start()
        made.cluster.newest("a").lose(KILLED)
        await made.until(lambda: len(made.cluster.formed["a"]) == 2 and made.phase("a") is PipelinePhase.SERVING)

    with caplog.at_level(logging.DEBUG):
        play(lambda: Engine(topology("a"), RESTARTED), scene)
    lines = [(entry.levelname, entry.getMessage()) for entry in caplog.records if entry.getMessage().startswith("pipe")]
    first, second = (f"pipeline a serves: epoch {epoch}, 1 partitions, 1024 K/V slots" for epoch in (1, 2))
    assert lines == [("DEBUG", first), ("ERROR", f"pipeline a is lost: {KILLED}"), ("INFO", second)]


def test_requests_wait_for_the_only_pipeline_to_be_formed_again():
    async def scene(made: Engine) -> None:
        await made.engine.start()
        made.submit("r", (5, 6), 40)
        await made.until(lambda: made.engine.snapshot.num_iterations > 3)
        made.cluster.refusals["a"] = [WorkerLostError("not yet"), WorkerLostError("nor yet")]
        made.cluster.newest("a").lose(KILLED)
        await made.until(lambda: made.engine.snapshot.state is EngineState.RECOVERING)
        assert made.engine.snapshot.failure == "pipeline a is lost: worker a:1: killed"
        assert made.phase("a") is PipelinePhase.RECOVERING
        with pytest.raises(RequestError, match="maximum context length"):
            made.submit("too long", (7,), MAX_MODEL_LEN)
        made.submit("late", (7,), 3)
        assert await made.collect(2) == {"r": continuation((5, 6), 40), "late": continuation((7,), 3)}
        assert len(made.cluster.formed["a"]) == 4
        assert made.engine.snapshot.state is EngineState.SERVING

    play(lambda: Engine(topology("a"), RESTARTED), scene)


def test_requests_that_wait_too_long_for_a_pipeline_end_with_the_cause():
    async def scene(made: Engine) -> None:
        await made.engine.start()
        made.cluster.newest("a").hangs = True
        made.submit("r", (5, 6), 40)
        made.cluster.refusals["a"] = [WorkerLostError("not there")] * 100_000
        made.cluster.newest("a").lose(KILLED)
        assert await made.ended("r") == "pipeline a is lost: worker a:1: killed"
        assert made.engine.snapshot.state is EngineState.RECOVERING, "and the engine goes on waiting"
        made.cluster.refusals["a"].clear()
        await made.until(lambda: made.engine.snapshot.state is EngineState.SERVING)
        made.submit("next", (1,), 2)
        assert await made.collect(1) == {"next": continuation((1,), 2)}

    config = EngineConfig(worker_owner=WorkerOwner.CLUSTER, recovery_timeout=0.01)
    play(lambda: Engine(topology("a"), config), scene)


def test_without_anybody_to_restart_workers_the_last_lost_pipeline_ends_the_engine():
    async def scene(made: Engine) -> None:
        await made.engine.start()
        for name in ("a", "b"):
            made.cluster.newest(name).hangs = True
        made.submit("r", (5, 6), 40)
        made.cluster.newest("a").lose(KILLED)
        await made.until(lambda: made.phase("a") is PipelinePhase.RECOVERING)
        assert made.engine.snapshot.state is EngineState.SERVING
        made.cluster.newest("b").lose(WorkerLostError("worker b:1: gone", worker="b:1"))
        assert await made.ended("r") == "pipeline b is lost: worker b:1: gone"
        assert made.engine.snapshot.state is EngineState.FAILED
        with pytest.raises(EngineUnavailableError, match="worker b:1: gone"):
            made.submit("next", (1,), 2)
        await made.until(lambda: made.cluster.newest("b").calls == ["shutdown"])
        assert len(made.cluster.formed["a"]) == 1

    play(lambda: Engine(topology("a", "b")), scene)


def test_an_iteration_that_does_not_return_ends_its_pipeline():
    async def scene(made: Engine) -> None:
        await made.engine.start()
        made.cluster.newest("a").hangs = True
        made.submit("r", (5, 6), 4)
        assert await made.collect(1) == {"r": continuation((5, 6), 4)}
        failure = made.engine.snapshot.pipelines[0].last_failure
        assert failure is not None
        assert (failure.reason, failure.message) == (Reason.ENGINE_STALLED, "an iteration did not return within 0 s")

    config = EngineConfig(worker_owner=WorkerOwner.CLUSTER, recovery_timeout=60.0, stall_timeout=0.05)
    play(lambda: Engine(topology("a"), config), scene)


@pytest.mark.parametrize("owner", [WorkerOwner.ENGINE, WorkerOwner.PARENT], ids=lambda owner: owner.value)
@pytest.mark.parametrize("error", [ConfigurationError("--kv-slots: too many"), KILLED], ids=["refused", "lost"])
def test_a_start_fails_with_the_reason(error, owner):
    """Also if another pipeline serves already: with workers of the engine's own all pipelines must be formed."""

    async def scene(made: Engine) -> None:
        made.cluster.refusals["b"] = [error]
        with pytest.raises(type(error), match=str(error)):
            await made.engine.start()
        assert made.engine.snapshot.state is EngineState.FAILED

    play(lambda: Engine(topology("a", "b"), EngineConfig(worker_owner=owner)), scene)


AGAIN = EngineConfig(worker_owner=WorkerOwner.PARENT, recovery_timeout=60.0, restarted=True)


def test_a_restarted_engine_serves_with_the_first_pipeline_and_forms_the_others_beside():
    """Otherwise the death of a master would end the service of every pipeline while the workers of one are missing."""

    async def scene(made: Engine) -> None:
        made.cluster.refusals["b"] = [KILLED] * MAX_ATTEMPTS
        await made.engine.start()
        made.submit("r", (5, 6), 4)
        assert await made.collect(1) == {"r": continuation((5, 6), 4)}
        assert made.phase("b") is not PipelinePhase.SERVING
        await made.until(lambda: made.phase("b") is PipelinePhase.SERVING)

    play(lambda: Engine(topology("a", "b"), AGAIN), scene)


def test_a_restarted_engine_gives_up_when_no_pipeline_can_be_formed():
    async def scene(made: Engine) -> None:
        made.cluster.refusals["a"] = [ConfigurationError("no memory")]
        made.cluster.refusals["b"] = [KILLED] * 100
        await made.engine.start()
        await made.until(lambda: len(made.cluster.formed["b"]) == 1 + MAX_ATTEMPTS)
        made.cluster.refusals["a"] = [KILLED] * 100
        made.cluster.newest("a").lose(KILLED)
        await asyncio.wait_for(made.engine.failed.wait(), 30)

    async def never(made: Engine) -> None:
        made.cluster.refusals["a"] = made.cluster.refusals["b"] = [KILLED] * 100
        with pytest.raises(WorkerLostError, match="killed"):
            await made.engine.start()
        assert [len(made.cluster.formed[name]) for name in "ab"] == [1 + MAX_ATTEMPTS] * 2

    for each in (scene, never):
        play(lambda: Engine(topology("a", "b"), AGAIN), each)


def test_a_pipeline_that_is_lost_before_all_are_formed_fails_the_start():
    async def scene(made: Engine) -> None:
        forms = asyncio.Event()

        async def form(enter: Callable[[PipelinePhase], None], previous_num_blocks: int) -> None:
            await forms.wait()

        starting = asyncio.create_task(made.engine.start())
        await asyncio.sleep(0)
        made.cluster.newest("b").form = form  # type: ignore[method-assign]
        await made.until(lambda: made.phase("a") is PipelinePhase.SERVING)
        made.cluster.newest("a").lose(KILLED)
        with pytest.raises(WorkerLostError, match="killed"):
            await starting

    play(lambda: Engine(topology("a", "b")), scene)


def test_a_start_waits_for_workers_that_somebody_else_starts():
    async def scene(made: Engine) -> None:
        made.cluster.refusals["a"] = [WorkerLostError("not there"), ConfigurationError("no memory yet")]
        made.submit("early", (3,), 4)
        await made.engine.start()
        assert await made.collect(1) == {"early": continuation((3,), 4)}

    play(lambda: Engine(topology("a"), RESTARTED), scene)


def test_pipelines_come_and_go_while_requests_run():
    async def scene(made: Engine) -> None:
        await made.engine.start()
        for index in range(6):
            made.submit(f"r{index}", (index + 1,), 50)
        await made.until(lambda: made.engine.snapshot.num_iterations > 4)
        made.cluster.newest("a").hangs = True  # its requests move without a wait for its iterations
        await made.engine.apply(topology("b", "c"))
        assert [report.id for report in made.engine.snapshot.pipelines] == ["b", "c"]
        assert made.cluster.newest("a").calls == ["close"]
        assert await made.collect(6) == {f"r{index}": continuation((index + 1,), 50) for index in range(6)}
        with pytest.raises(ConfigurationError, match="only `pipelines` and `closed` can change"):
            await made.engine.apply(topology("b", partitions=2))
        made.submit("moves", (9,), 3)
        await made.engine.apply(topology("d"))
        assert await made.collect(1) == {"moves": continuation((9,), 3)}
        assert [entry.id for entry in made.engine.snapshot.pipelines] == ["d"]

    play(lambda: Engine(topology("a", "b"), RESTARTED), scene)


def test_an_engine_that_owns_its_workers_replaces_its_only_pipeline():
    """The end of a pipeline that leaves the topology is no failure of the engine; requests wait `recovery_timeout`."""

    async def scene(made: Engine) -> None:
        await made.engine.start()
        made.cluster.newest("a").hangs = True
        made.submit("ends", (1,), 4)
        await made.until(lambda: made.engine.snapshot.num_running == 1)
        await made.engine.apply(topology("b"))
        assert "the pipeline was removed from the topology" in str(await made.ended("ends"))
        await made.until(lambda: made.engine.snapshot.state is EngineState.SERVING)
        made.submit("next", (1,), 4)
        assert await made.collect(1) == {"next": continuation((1,), 4)}
        assert not made.engine._losses._in_flight

    play(lambda: Engine(topology("a")), scene)


def test_a_closed_topology_finishes_what_an_earlier_master_had_accepted():
    async def scene(made: Engine) -> None:
        resumed = dataclasses.replace(made.submission("resumed", (1,), 4), generated=continuation((1,), 2))
        made.engine.submit(resumed)
        with pytest.raises(EngineUnavailableError, match="scaled to zero"):
            made.submit("new", (1,), 2)
        await made.engine.start()
        assert await made.collect(1) == {"resumed": continuation((1,), 4)[2:]}
        await made.engine.apply(closed.model_copy(update={"pipelines": ()}))
        with pytest.raises(EngineUnavailableError, match="scaled to zero"):
            made.engine.submit(resumed)

    closed = topology("a").model_copy(update={"closed": "scaled to zero"})
    play(lambda: Engine(closed, RESTARTED), scene)


def test_what_can_never_be_served_is_refused_and_what_waits_is_ended_once_the_limits_are_known():
    async def scene(made: Engine) -> None:
        made.submit("too long", (1,) * 60, 60)
        made.submit("fits", (1,), 2)
        await made.engine.start()
        assert "maximum context length" in (await made.ended("too long") or "")
        assert await made.collect(1) == {"fits": continuation((1,), 2)}
        with pytest.raises(RequestError, match="maximum context length"):
            made.submit("too long again", (1,) * MAX_MODEL_LEN, 1)

    play(lambda: Engine(topology("a")), scene)


def test_the_queue_is_bounded_and_the_bound_can_change():
    async def scene(made: Engine) -> None:
        made.submit("first", (1,), 2)
        with pytest.raises(QueueFullError, match="the limit is 1"):
            made.submit("second", (1,), 2)
        made.engine.reconfigure(EngineConfig(max_queued_requests=2))
        made.submit("second", (1,), 2)
        made.engine.cancel("first")
        assert made.engine.snapshot.num_waiting == 1
        await made.engine.start()
        assert await made.collect(1) == {"second": continuation((1,), 2)}

    play(lambda: Engine(topology("a"), EngineConfig(max_queued_requests=1)), scene)


def test_stopping_ends_requests_first_and_workers_of_the_engine_then():
    async def scene(made: Engine) -> None:
        await made.engine.start()
        made.cluster.newest("a").hangs = True
        made.submit("r", (1,), 2)
        await made.engine.stop("SIGTERM")
        assert await made.ended("r") == "the server stops: SIGTERM"
        assert made.cluster.newest("a").calls == ["shutdown"]

    play(lambda: Engine(topology("a")), scene)


@pytest.mark.parametrize("turns", range(9))
def test_a_pipeline_may_be_lost_while_it_leaves_the_topology(turns):
    """Whatever the engine is doing about the loss when the edit comes, the requests continue."""

    async def scene(made: Engine) -> None:
        await made.engine.start()
        for index in range(4):
            made.submit(f"r{index}", (index + 1,), 40)
        await made.until(lambda: made.engine.snapshot.num_iterations > 4)
        made.cluster.newest("a").lose(KILLED)
        for _ in range(turns):
            await asyncio.sleep(0)
        await made.engine.apply(topology("b"))
        await made.engine.apply(topology("a", "b"))
        assert await made.collect(4) == {f"r{index}": continuation((index + 1,), 40) for index in range(4)}
        made.assert_nothing_held()

    play(lambda: Engine(topology("a", "b"), RESTARTED), scene)


def test_the_deadline_of_a_lost_pipeline_does_not_end_the_next():
    async def scene(made: Engine) -> None:
        await made.engine.start()
        made.cluster.newest("a").hangs = True
        made.submit("r", (5, 6), 4)
        await made.until(lambda: len(made.cluster.formed["a"]) == 2)
        assert await made.collect(1) == {"r": continuation((5, 6), 4)}
        await asyncio.sleep(0.2)  # several times the deadline, while nothing is in flight
        assert len(made.cluster.formed["a"]) == 2
        assert made.phase("a") is PipelinePhase.SERVING

    config = EngineConfig(worker_owner=WorkerOwner.CLUSTER, recovery_timeout=60.0, stall_timeout=0.05)
    play(lambda: Engine(topology("a"), config), scene)


def test_a_topology_may_come_before_the_start_but_not_after_the_stop():
    async def scene(made: Engine) -> None:
        await made.engine.apply(topology("a", "b"))
        await made.engine.start()
        await made.until(lambda: made.phase("b") is PipelinePhase.SERVING)
        assert {name: len(formed) for name, formed in made.cluster.formed.items()} == {"a": 1, "b": 1}
        await made.engine.stop("SIGTERM")
        with pytest.raises(ConfigurationError, match="has stopped"):
            await made.engine.apply(topology("a", "b", "c"))

    play(lambda: Engine(topology("a")), scene)


def test_an_entry_with_other_workers_is_another_pipeline():
    async def scene(made: Engine) -> None:
        await made.engine.start()
        made.submit("r", (5, 6), 40)
        await made.until(lambda: made.engine.snapshot.num_iterations > 2)
        moved = topology("a")
        moved = moved.model_copy(update={"pipelines": [PipelineSpec(id="a", workers=["elsewhere:1"])]})
        await made.engine.apply(moved)
        assert await made.collect(1) == {"r": continuation((5, 6), 40)}
        assert [workers.spec.workers for workers in made.cluster.formed["a"]] == [["a:0"], ["elsewhere:1"]]

    play(lambda: Engine(topology("a"), RESTARTED), scene)


def test_a_stop_during_an_edit_also_ends_the_pipelines_that_the_edit_begins():
    async def scene(made: Engine) -> None:
        await made.engine.start()
        editing = asyncio.create_task(made.engine.apply(topology("b", "c")))
        await asyncio.sleep(0)  # the edit waits for the end of pipeline a
        await asyncio.gather(editing, made.engine.stop("SIGTERM"))
        assert {report.phase for report in made.engine.snapshot.pipelines} <= {
            PipelinePhase.CONNECTING,
            PipelinePhase.RECOVERING,
        }
        assert made.cluster.newest("c").calls == ["close"]
        supervisors = [task for task in asyncio.all_tasks() if "PipelineSupervisor" in repr(task.get_coro())]
        assert supervisors == []

    play(lambda: Engine(topology("a", "b"), RESTARTED), scene)
