"""Adapters that are loaded and removed while the engine runs: every pipeline that serves has them. Fake workers."""

from __future__ import annotations

import asyncio
import dataclasses
from types import SimpleNamespace

import pytest
from orca_contract.state import EngineState
from orca_master.engine import supervisor as supervisor_module
from orca_master.engine.adapter_calls import EngineAdapters
from orca_master.engine.faults import WorkerLostError
from orca_master.engine.load_request import load_requests
from orca_master.errors import ConfigurationError, EngineUnavailableError, ModelNotFoundError, RequestError
from support.adapted_engine import START, both_serve, on_workers, served, set_hanging, submit, two
from support.fake_engine import Engine, play, topology
from support.fake_workers import FakeWorkers, continuation

KILLED = WorkerLostError("worker a:0: killed")


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor_module, "RETRY_SECONDS", 0.001)


def test_all_pipelines_load_an_adapter_before_requests_use_it():
    async def scene(made: Engine) -> None:
        await both_serve(made)
        gate = made.cluster.newest("b").adapter_gate = asyncio.Event()
        loading = asyncio.create_task(made.engine.adapters.load("x", "sub/x", "key"))
        await made.until(lambda: on_workers(made)[0] == {1: "/d/sub/x"})
        assert served(made) == []
        with pytest.raises(ModelNotFoundError):
            submit(made, "early", 1)
        with pytest.raises(RequestError, match="taken"):
            await made.engine.adapters.load("x", "y", "key")
        gate.set()
        await loading
        assert on_workers(made) == [{1: "/d/sub/x"}, {1: "/d/sub/x"}]
        assert served(made) == [("x", 1, "key")]
        submit(made, "r", 1)
        assert await made.collect(1) == {"r": continuation((5, 6), 4)}

    play(two, scene)


@pytest.mark.parametrize("path", ["..", "../x", ".", "/d", "/dx", "/e/x", "x/../../d2", "/d/../etc", "a\0b"])
def test_a_path_outside_of_the_folder_reaches_no_worker(path):
    async def scene(made: Engine) -> None:
        await both_serve(made)
        with pytest.raises(RequestError, match=r"^lora_path: a path below the folder") as refused:
            await made.engine.adapters.load("x", path, "")
        assert refused.value.field == "lora_path"
        assert made.engine.adapters.registry.present == []

    play(two, scene)


@pytest.mark.parametrize(("length", "count"), [(4096, 1), (4097, 0)])
def test_the_length_of_a_path_is_bounded(length, count):
    async def scene(made: Engine) -> None:
        await both_serve(made)
        loading = made.engine.adapters.load("x", "a" * length, "")
        if count:
            await loading
        else:
            with pytest.raises(RequestError, match=r"^lora_path: a path of at most 4096 characters") as refused:
                await loading
            assert refused.value.field == "lora_path"
        assert [len(adapters) for adapters in on_workers(made)] == [count, count]

    play(two, scene)


def test_a_refused_load_is_removed_from_the_pipelines_once():
    async def scene(made: Engine) -> None:
        await both_serve(made)
        made.cluster.newest("b").adapter_errors = {"/d/x": ConfigurationError("x: no weights")}
        with pytest.raises(RequestError, match="no weights"):
            await made.engine.adapters.load("x", "x", "")
        assert made.engine.adapters._removing == set()
        assert len(made.cluster.newest("a").iteration_seconds) == 3, "of the formation, the load and the removal"

    play(two, scene)


def test_a_removal_that_workers_refuse_is_logged(caplog, monkeypatch):
    async def scene(made: Engine) -> None:
        await both_serve(made)
        await made.engine.adapters.load("x", "x", "")
        workers = made.cluster.newest("b")

        async def refuse(*_: object) -> str:
            raise ConfigurationError("b:0: no removal")

        monkeypatch.setattr(workers, "change_adapters", refuse)
        await made.engine.adapters.unload("x", "")
        await made.until(lambda: on_workers(made)[0] == {} and not made.engine.adapters._removing)

    play(two, scene)
    lines = [record.getMessage() for record in caplog.records if record.name.endswith("engine.runtime_adapters")]
    assert "adapters are not removed before the next change: b:0: no removal" in lines


def test_an_adapter_that_one_pipeline_refuses_is_removed_from_the_others():
    async def scene(made: Engine) -> None:
        await both_serve(made, "y")
        made.cluster.newest("b").adapter_errors = {"/d/x": ConfigurationError("x: no weights")}
        with pytest.raises(RequestError, match=r"^lora_path: x: no weights$"):
            await made.engine.adapters.load("x", "/d/x", "")
        assert on_workers(made) == [{1: "/d/y"}, {1: "/d/y"}]
        made.cluster.newest("b").adapter_errors = {}
        await made.engine.adapters.load("x", "/d/x", "")
        assert served(made) == [("y", 1, ""), ("x", 3, "")]

    play(two, scene)


def test_running_requests_finish_with_an_adapter_that_is_unloaded():
    async def scene(made: Engine) -> None:
        await both_serve(made, "x")
        set_hanging(made, True)
        submit(made, "r", 1, 8)
        await made.until(lambda: made.engine.snapshot.num_running == 1)
        await made.engine.adapters.unload("x", "")
        assert served(made) == []
        with pytest.raises(ModelNotFoundError, match="not loaded any more"):
            submit(made, "late", 1)
        await made.engine.adapters.load("x", "other", "")
        assert on_workers(made)[0] == {1: "/d/x", 2: "/d/other"}
        set_hanging(made, False)
        assert await made.collect(1) == {"r": continuation((5, 6), 8)}
        await made.until(lambda: on_workers(made) == [{2: "/d/other"}] * 2)
        assert [entry.number for entry in made.engine.adapters.registry.present] == [2]

    play(two, scene)


def test_a_cancelled_request_keeps_no_adapter():
    async def scene(made: Engine) -> None:
        await both_serve(made, "x")
        set_hanging(made, True)
        submit(made, "r", 1, 8)
        await made.engine.adapters.unload("x", "")
        assert made.engine.adapters.registry.leaving == {1}
        made.engine.cancel("r")
        await made.until(lambda: on_workers(made) == [{}, {}])

    play(two, scene)


def test_a_pipeline_that_is_formed_again_has_the_adapters_before_it_serves():
    async def scene(made: Engine) -> None:
        await made.engine.start()
        await made.engine.adapters.load("x", "x", "")
        await made.engine.adapters.load("y", "y", "")
        await made.engine.adapters.unload("y", "")
        made.cluster.newest("a").hangs = True
        submit(made, "r", 1, 8)
        await made.until(lambda: made.engine.snapshot.num_running == 1)
        made.cluster.newest("a").lose(KILLED)
        assert await made.collect(1) == {"r": continuation((5, 6), 8)}
        assert len(made.cluster.formed["a"]) == 2
        assert made.cluster.newest("a").adapters == {1: "/d/x"}

    play(lambda: Engine(topology("a"), START), scene)


def test_an_adapter_that_is_loaded_during_a_formation_comes_to_that_pipeline_too():
    async def scene(made: Engine) -> None:
        await both_serve(made, "x")
        gate = asyncio.Event()

        def hold(workers: FakeWorkers) -> None:
            workers.adapter_gate = gate

        made.cluster.on_made = hold
        made.cluster.newest("b").lose(KILLED)
        await made.until(lambda: len(made.cluster.formed["b"]) == 2)
        await made.engine.adapters.load("y", "y", "")
        assert [entry.id for entry in made.engine._pipelines.serving.values()] == ["a"]
        gate.set()
        await made.until(lambda: len(made.engine._pipelines.serving) == 2)
        assert on_workers(made) == [{1: "/d/x", 2: "/d/y"}] * 2

    play(two, scene)


@pytest.mark.parametrize("change", ["load", "removal"])
def test_iterations_have_the_time_of_a_change_beyond_their_bound(change):
    """The watch of each pipeline that changes, and the bound that the probes read."""

    async def scene(made: Engine) -> None:
        await made.engine.start()
        assert made.engine.snapshot.stall_seconds == 300.0
        await made.engine.adapters.load("x", "x", "")
        watch = made.engine._pipelines.serving["a"].watch
        gate = made.cluster.newest("a").adapter_gate = asyncio.Event()
        made.cluster.newest("a").gates_removals = True
        if change == "load":
            loading = asyncio.create_task(made.engine.adapters.load("y", "y", ""))
        else:
            loading = asyncio.create_task(made.engine.adapters.unload("x", ""))
        await made.until(lambda: made.engine.snapshot.stall_seconds == 360.0)
        assert watch.seconds == 360.0
        gate.set()
        await loading
        await made.until(lambda: watch.seconds == 300.0)
        submit(made, "r", 0)
        assert await made.collect(1) == {"r": continuation((5, 6), 4)}
        assert made.engine.snapshot.stall_seconds == 300.0

    play(lambda: Engine(topology("a"), dataclasses.replace(START, stall_timeout=300.0)), scene)


def test_a_change_waits_for_iterations_of_the_present_bound():
    """None are in flight before the pipeline serves."""

    async def scene(made: Engine) -> None:
        await made.engine.start()
        await made.engine.adapters.load("x", "x", "")
        made.engine.reconfigure(dataclasses.replace(START, stall_timeout=900.0))
        await made.engine.adapters.load("y", "y", "")
        await made.engine.adapters.unload("y", "")
        await made.until(lambda: made.cluster.newest("a").adapters == {1: "/d/x"})
        first, *later = made.cluster.newest("a").iteration_seconds
        assert (first, later) == (0.0, [300.0, 900.0, 900.0])

    play(lambda: Engine(topology("a"), START), scene)


def test_pipelines_with_different_files_load_none_of_them():
    async def scene(made: Engine) -> None:
        await both_serve(made)
        made.cluster.newest("b").adapter_digests = {"/d/x": "other"}
        with pytest.raises(RequestError, match="workers of different pipelines have different files"):
            await made.engine.adapters.load("x", "x", "")
        assert on_workers(made) == [{}, {}]

    play(two, scene)


def test_a_pipeline_that_comes_during_a_load_has_the_same_files():
    """It has loaded its own before anyone knew which are right."""

    async def scene(made: Engine) -> None:
        await both_serve(made)

        def exchange_files(workers: FakeWorkers) -> None:
            workers.adapter_digests = {"/d/x": "other"}

        gate = made.cluster.newest("a").adapter_gate = asyncio.Event()
        made.cluster.on_made = exchange_files
        loading = asyncio.create_task(made.engine.adapters.load("x", "x", ""))
        await made.until(lambda: on_workers(made)[1] == {1: "/d/x"})
        made.cluster.newest("b").lose(KILLED)
        await made.until(lambda: len(made.cluster.formed["b"]) == 2 and len(made.engine._pipelines.serving) == 2)
        assert on_workers(made)[1] == {1: "/d/x"}
        gate.set()
        with pytest.raises(RequestError, match="workers of different pipelines have different files"):
            await loading
        assert on_workers(made) == [{}, {}]

    play(two, scene)


def test_an_adapter_whose_files_have_changed_is_lost_with_its_requests_and_no_others():
    async def scene(made: Engine) -> None:
        await both_serve(made, "x", "y")
        set_hanging(made, True)
        made.cluster.hang = True
        for index in range(2):  # each pipeline computes one of them, and the next request waits
            submit(made, f"x{index}", 1, 8)
        submit(made, "y", 2, 8)
        await made.until(lambda: made.engine.snapshot.num_running == 2)
        made.cluster.adapter_errors["/d/x"] = ConfigurationError("x: the files have changed")
        made.cluster.newest("a").lose(KILLED)
        for index in range(2):
            error = "the adapter 'x' could not be loaded again after a loss of workers: x: the files have changed"
            assert await made.ended(f"x{index}") == error
        set_hanging(made, False)
        assert await made.collect(1) == {"y": continuation((5, 6), 8)}
        assert served(made) == [("y", 2, "")]
        assert made.cluster.newest("a").adapters == {2: "/d/y"}

    play(two, scene)


def test_workers_that_are_lost_while_they_load_load_it_when_they_are_formed_again():
    async def scene(made: Engine) -> None:
        await both_serve(made)
        made.cluster.newest("b").adapter_errors = {"/d/x": KILLED}
        await made.engine.adapters.load("x", "x", "")
        await made.until(lambda: len(made.cluster.formed["b"]) == 2 and len(made.engine._pipelines.serving) == 2)
        assert on_workers(made) == [{1: "/d/x"}] * 2

    play(two, scene)


def test_without_a_pipeline_nothing_is_loaded():
    async def scene(made: Engine) -> None:
        await made.engine.start()
        made.cluster.refusals["a"] = [WorkerLostError("not there")] * 100_000
        made.cluster.newest("a").adapter_errors = {"/d/x": KILLED}
        with pytest.raises(EngineUnavailableError, match="workers were lost"):
            await made.engine.adapters.load("x", "x", "")
        await made.until(lambda: made.engine.snapshot.state is EngineState.RECOVERING)
        with pytest.raises(EngineUnavailableError, match="no pipeline serves"):
            await made.engine.adapters.load("x", "x", "")
        assert made.engine.adapters.registry.present == []

    play(lambda: Engine(topology("a"), START), scene)


def test_without_the_option_workers_hear_nothing_of_adapters():
    async def scene(made: Engine) -> None:
        made.cluster.adapter_errors["/d/x"] = KILLED
        await made.engine.start()
        for change in (made.engine.adapters.load("x", "x", ""), made.engine.adapters.unload("x", "")):
            with pytest.raises(RequestError, match="--enable-runtime-adapters DIR"):
                await change

    off = dataclasses.replace(START, runtime_adapters=None)
    play(lambda: Engine(topology("a"), off), scene)
    (without,), (changing,) = (
        load_requests(topology("a").pipelines[0], topology("a"), config) for config in (off, START)
    )
    assert (without.runtime_adapters, changing.runtime_adapters) == ("", "/d")


def test_a_load_unloads_the_adapters_of_keys_that_are_not_valid_any_more():
    """Their names are free at once, and their memory when their last requests have ended."""

    async def scene(made: Engine) -> None:
        await both_serve(made)
        valid = {"old", "new"}
        thread = SimpleNamespace(engine=made.engine, on_engine=lambda call: asyncio.ensure_future(call()))
        loader = EngineAdapters(thread, valid.__contains__)
        await loader.load("x", "x", "old")
        await loader.load("y", "y", "old")
        await loader.load("z", "z", "new")
        assert served(made) == [("x", 1, "old"), ("y", 2, "old"), ("z", 3, "new")]
        set_hanging(made, True)
        submit(made, "r", 1)
        valid.remove("old")
        await loader.load("y", "sub/y", "new")
        assert served(made) == [("z", 3, "new"), ("y", 4, "new")]
        with pytest.raises(ModelNotFoundError):
            submit(made, "late", 1)
        assert [adapter.number for adapter in made.engine.adapters.registry.present] == [1, 3, 4]
        set_hanging(made, False)
        assert await made.collect(1) == {"r": continuation((5, 6), 4)}
        await made.until(lambda: on_workers(made) == [{3: "/d/z", 4: "/d/sub/y"}] * 2)

    play(two, scene)


def test_an_adapter_of_an_earlier_master_is_restored_under_its_number_only():
    """Its owner may have unloaded it, or loaded other files under its name. It stays until it is released."""

    async def scene(made: Engine) -> None:
        await both_serve(made)
        adapters = made.engine.adapters
        assert await adapters.restore("x", "/d/v1", "key", "/d/v1") == 1
        assert await adapters.restore("x", "/d/v2", "key", "/d/v2") == 2
        await adapters.load("x", "v3", "key")
        assert served(made) == [("x", 3, "key")]
        submit(made, "r", 1)
        assert await made.collect(1) == {"r": continuation((5, 6), 4)}
        adapters.settle()
        assert on_workers(made) == [{1: "/d/v1", 2: "/d/v2", 3: "/d/v3"}] * 2, "also while no request uses them"
        set_hanging(made, True)
        submit(made, "r2", 1)
        adapters.release(1)
        with pytest.raises(ModelNotFoundError):
            submit(made, "late", 1)
        await adapters.unload("x", "key")
        assert [each.number for each in adapters.registry.present] == [1, 2]
        set_hanging(made, False)
        assert await made.collect(1) == {"r2": continuation((5, 6), 4)}
        await made.until(lambda: on_workers(made) == [{2: "/d/v2"}] * 2)
        adapters.release(2)
        adapters.release(2)
        await made.until(lambda: on_workers(made) == [{}] * 2)

    play(two, scene)


async def lose_workers_over_a_restore(made: Engine) -> None:
    """Restore an adapter whose load kills the workers of both pipelines, and wait until both serve again."""
    made.cluster.adapter_errors["/d/z"] = KILLED
    for name in ("a", "b"):
        made.cluster.newest(name).adapter_errors = made.cluster.adapter_errors
    with pytest.raises(EngineUnavailableError, match="workers were lost"):
        await made.engine.adapters.restore("z", "/d/z", "key", "/d/z")
    await made.until(lambda: len(made.engine._pipelines.serving) == 2)


def test_an_adapter_with_other_files_or_over_which_workers_are_lost_is_not_restored():
    async def scene(made: Engine) -> None:
        await both_serve(made)
        adapters = made.engine.adapters
        with pytest.raises(RequestError, match=r"^lora_path: the files have changed"):
            await adapters.restore("y", "/d/y", "key", "earlier")
        with pytest.raises(RequestError, match="a path below the folder"):
            await adapters.restore("y", "/e/y", "key", "/e/y")
        await lose_workers_over_a_restore(made)
        with pytest.raises(RequestError, match="workers were lost 2 times"):
            await adapters.restore("z", "/d/z", "key", "/d/z")
        assert adapters.registry.present == []

    play(two, scene)


def test_losses_of_workers_before_an_adapter_was_restored_do_not_count():
    async def scene(made: Engine) -> None:
        await both_serve(made)
        adapters = made.engine.adapters
        for _ in range(2):
            await lose_workers_over_a_restore(made)
            made.cluster.adapter_errors.clear()
            adapters.release(await adapters.restore("z", "/d/z", "key", "/d/z"))

    play(two, scene)
