"""`PipelineSet`: begins, replaces and ends the pipelines of a topology. Their life cycles: test_supervisor.py."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace

import pytest
from orca_contract.reasons import Reason
from orca_contract.state import PipelinePhase
from orca_contract.topology import ModelSpec
from orca_master.engine import pipeline_set, supervisor
from orca_master.engine.config import EngineConfig, WorkerOwner
from orca_master.engine.faults import WorkerLostError
from orca_master.engine.pipeline_set import PipelineSet
from orca_master.engine.request_limits import check_values
from orca_master.engine.snapshot import LoadedBytes
from orca_master.errors import RequestError
from orca_master.scheduling.request import Request
from orca_protos import engine_pb2 as pb
from orca_protos.file_digest import tokenizer_digest
from support import fake_engine
from support.fake_engine import Engine, topology
from support.fake_workers import BYTES, MAX_MODEL_LEN, Cluster

CONFIG = EngineConfig(worker_owner=WorkerOwner.CLUSTER)


class Listener:
    """Does what the engine does with the set, and ignores iterations."""

    pipelines: PipelineSet

    num_progress = 0

    def on_progress(self) -> None:
        self.num_progress += 1

    def on_change(self) -> None:
        self.reports = self.pipelines.reports

    def on_serving(self, supervisor) -> None:
        self.pipelines.add_serving(supervisor, logging.INFO)

    def on_lost(self, supervisor, reason) -> None:
        self.pipelines.remove_serving(supervisor)

    def on_departure(self, supervisor) -> None:
        self.pipelines.departures.note(supervisor)

    def on_failure(self, supervisor, error) -> None:
        pass

    def on_result(self, supervisor, batch, result) -> None:
        pass

    def on_timing(self, pipeline, timing) -> None:
        pass


def play(scene) -> None:
    """Run a scene on a set of the pipelines a and b, then end the set."""

    async def run() -> None:
        cluster, listener = Cluster(), Listener()
        listener.pipelines = pipelines = PipelineSet(topology("a", "b"), listener, cluster.make)
        async with asyncio.timeout(30):
            await scene(pipelines, cluster)
            await pipelines.end()
            assert pipelines.serving == {}
            assert {report.phase for report in listener.reports} == {PipelinePhase.RECOVERING}

    asyncio.run(run())


async def all_serve(pipelines: PipelineSet) -> None:
    pipelines.begin(CONFIG)
    while not pipelines.all_serve:
        await asyncio.sleep(0)


def test_attempts_that_come_no_further_are_no_progress(monkeypatch):
    """Workers that crash at each load do not keep requests waiting for ever."""
    monkeypatch.setattr(supervisor, "RETRY_SECONDS", 0.001)

    async def scene(pipelines, cluster):
        await all_serve(pipelines)
        listener = pipelines._listener
        begun = listener.num_progress
        cluster.refusals["a"] = [WorkerLostError("it ended while it loaded") for _ in range(4)]
        cluster.newest("a").lose(WorkerLostError("killed"))
        while cluster.refusals["a"]:
            await asyncio.sleep(0)
        assert listener.num_progress - begun == 1, "of the first attempt: the workers were there"
        while not pipelines.all_serve:
            await asyncio.sleep(0)
        assert listener.num_progress - begun > 3

    play(scene)


def test_every_pipeline_of_the_topology_is_formed_once():
    async def scene(pipelines, cluster):
        assert pipelines.formed is None
        await all_serve(pipelines)
        pipelines.begin(CONFIG)
        assert [(report.id, report.phase) for report in pipelines.reports] == [
            ("a", PipelinePhase.SERVING),
            ("b", PipelinePhase.SERVING),
        ]
        assert {name: len(formed) for name, formed in cluster.formed.items()} == {"a": 1, "b": 1}
        assert (pipelines.formed.id, pipelines.formed.max_model_len) == ("b", MAX_MODEL_LEN)
        assert pipelines.loaded_bytes == LoadedBytes(4 * BYTES, 4 * BYTES)

    play(scene)


def test_the_tokens_of_waiting_requests_are_checked_once_for_each_vocabulary(monkeypatch):
    """Each loss checks all waiting requests, of which there may be thousands with thousands of tokens."""
    checked, request = [], Request("r", 0, [50], 4)
    monkeypatch.setattr(
        pipeline_set, "check_values", lambda request, size: (checked.append(size), check_values(request, size))
    )

    async def scene(pipelines, cluster):
        await all_serve(pipelines)
        for size in (100, 100, 60):
            pipelines.facts = pb.ModelFacts(max_model_len=MAX_MODEL_LEN, vocabulary_size=size)
            pipelines.check_fits(request)
        assert checked == [100, 60]
        pipelines.facts.vocabulary_size = 40
        with pytest.raises(RequestError, match="prompt"):
            pipelines.check_fits(request)
        with pytest.raises(RequestError, match="prompt"):  # what was refused has not been checked
            pipelines.check_fits(request)

    play(scene)


def test_only_pipelines_that_differ_are_replaced():
    async def scene(pipelines, cluster):
        await all_serve(pipelines)
        leaving, kept = cluster.newest("a"), cluster.newest("b")
        assert await pipelines.replace(topology("b", "c")) == {"b"}
        pipelines.begin(CONFIG)
        assert (leaving.calls, kept.calls) == (["close"], [])
        assert list(pipelines.serving) == ["b"]
        while not pipelines.all_serve:
            await asyncio.sleep(0)
        assert [report.id for report in pipelines.reports] == ["b", "c"]
        assert cluster.newest("b") is kept

    play(scene)


@pytest.mark.parametrize(("owner", "call"), [(WorkerOwner.CLUSTER, "close"), (WorkerOwner.ENGINE, "shutdown")])
def test_workers_that_the_engine_owns_are_shut_down_at_the_end(owner, call):
    async def scene(pipelines, cluster):
        pipelines.begin(EngineConfig(worker_owner=owner))
        while not pipelines.all_serve:
            await asyncio.sleep(0)
        await pipelines.end()
        await pipelines.disconnect("the test ends")
        assert [cluster.newest(name).calls for name in "ab"] == [[call], [call]]

    play(scene)


@pytest.mark.parametrize(
    ("facts", "what"),
    [
        (pb.ModelFacts(source="new"), "fetched revisions old and new"),
        (pb.ModelFacts(file_digest={"0": "y"}), "0 x and y"),
    ],
)
def test_a_pipeline_with_other_weights_does_not_serve_beside_another(monkeypatch, caplog, facts, what):
    """It would give other answers to the same prompts. When no other pipeline serves, it serves."""
    monkeypatch.setattr(supervisor, "RETRY_SECONDS", 0.001)
    weights = {"a": pb.ModelFacts(source="old", file_digest={"0": "x"}), "b": facts}
    losses, brought = [], []

    async def scene(pipelines, cluster):
        cluster.on_made = lambda workers: workers.facts.MergeFrom(weights[workers.spec.id])
        cluster.refusals["b"] = [WorkerLostError("later than a")]

        async def bring(workers):
            brought.append(workers.spec.id)

        monkeypatch.setattr(pipelines.adapters, "bring", bring)
        pipelines._listener.on_failure = lambda _, error: losses.append(error)
        pipelines.begin(CONFIG)
        while len(losses) < 5:
            await asyncio.sleep(0)
        assert list(pipelines.serving) == ["a"]
        lines = [record.getMessage() for record in caplog.records if "was not formed" in record.getMessage()]
        assert len(lines) == 2, "of five failures, the first and the first of the others, which are the same"
        assert brought == ["a"], "the other is not formed in vain, each second anew"
        assert str(losses[-1]).startswith(
            f"pipeline a and pipeline b have different weights or settings of the model ({what})"
        )
        assert pipelines.reports[1].last_failure.reason is Reason.DIFFERENT_WEIGHTS
        cluster.refusals["a"] = [WorkerLostError("its pods are replaced") for _ in range(3)]
        cluster.newest("a").lose(WorkerLostError("its node is lost"))
        while list(pipelines.serving) != ["b"]:
            await asyncio.sleep(0)
        weights["a"] = facts
        while not pipelines.all_serve:
            await asyncio.sleep(0)

    play(scene)


@pytest.mark.parametrize(("theirs", "warns"), [("same", False), ("other", True), ("", False)])
def test_workers_with_another_tokenizer_than_the_masters_serve_with_a_warning(tmp_path, caplog, theirs, warns):
    """Only the master reads the file. Workers of older versions, and folders without it, report none."""
    (tmp_path / "tokenizer.json").write_text("{}")
    digest = {"same": tokenizer_digest(tmp_path), "other": "0" * 16, "": ""}[theirs]

    async def scene(made: Engine) -> None:
        made.cluster.on_made = lambda workers: workers.facts.MergeFrom(pb.ModelFacts(tokenizer=digest))
        await made.engine.start()

    model = ModelSpec(path=str(tmp_path), served_name="m")
    fake_engine.play(lambda: Engine(topology("a").model_copy(update={"model": model})), scene)
    lines = [record.getMessage() for record in caplog.records if "tokenizer.json" in record.getMessage()]
    assert len(lines) == warns
    if warns:
        assert lines[0].startswith(
            "pipeline a: tokenizer.json beside its weights is not that of this master (0000000000"
        )


def test_of_two_pipelines_that_form_at_the_same_time_one_serves(monkeypatch):
    """Both had been compared with those that served before."""
    losses, gate = [], asyncio.Event()

    async def scene(pipelines, cluster):
        async def bring(workers):
            await gate.wait()

        monkeypatch.setattr(pipelines.adapters, "bring", bring)
        cluster.on_made = lambda workers: workers.facts.MergeFrom(pb.ModelFacts(source=workers.spec.id))
        pipelines._listener.on_failure = lambda _, error: losses.append(error)
        pipelines.begin(CONFIG)
        while {report.phase for report in pipelines.reports} != {PipelinePhase.FORMING}:
            await asyncio.sleep(0)
        gate.set()
        while not losses:
            await asyncio.sleep(0)
        assert list(pipelines.serving) == ["a"]

    play(scene)


def test_nothing_stays_known_of_weights_that_were_replaced():
    """Files that the new ones do not have are not compared with later ones."""
    pipelines = PipelineSet(topology("a"), Listener(), Cluster().make)
    changed = []
    for digests in ({"0": "a", "1": "a"}, {"0": "b"}, {"0": "b", "1": "b"}, {"1": "c"}):
        workers = SimpleNamespace(facts=pb.ModelFacts(file_digest=digests))
        changed.append(pipelines.take_facts(SimpleNamespace(workers=workers))[0])
    assert changed == ["", "0 a and b", "", "1 b and c"]
