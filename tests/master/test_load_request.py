"""What the workers of a pipeline load."""

from __future__ import annotations

import dataclasses

import pytest
from orca_contract.reasons import Reason
from orca_contract.topology import ModelSpec, PipelineSpec, Topology
from orca_master.engine.config import EngineConfig
from orca_master.engine.faults import WorkerLostError
from orca_master.engine.load_request import common_facts, load_requests
from orca_protos import engine_pb2 as pb

CONFIG = EngineConfig(speculative_tokens=4)


def draft_paths(config: EngineConfig, draft_path: str | None) -> list[str]:
    """Return the draft model's path in the Load requests of two workers."""
    spec = PipelineSpec(id="a", workers=["w:1", "x:1"])
    model = ModelSpec(path="/m", served_name="m", draft_path=draft_path)
    topology = Topology(model=model, pipeline_parallel_size=2, pipelines=[spec])
    return [request.draft_model_path for request in load_requests(spec, topology, config)]


@pytest.mark.parametrize(("draft_path", "loaded"), [("/draft", "/draft"), (None, "")])
def test_every_worker_gets_the_path_of_the_draft_model(draft_path, loaded):
    assert draft_paths(CONFIG, draft_path) == [loaded, loaded]


def test_without_drafted_tokens_no_draft_model_is_loaded():
    """A topology file or a `PUT /topology` may name one that the master's options do not use."""
    assert draft_paths(dataclasses.replace(CONFIG, speculative_tokens=0), "/draft") == ["", ""]


@pytest.mark.parametrize("sources", [["", ""], ["a", "a"], ["a", ""]])
def test_workers_with_the_same_revision_or_an_unknown_one(sources):
    facts = [pb.ModelFacts(source=source, num_layers=place) for place, source in enumerate(sources)]
    assert common_facts(["w:1", "x:1"], facts) == facts[0]


def test_workers_with_different_revisions_do_not_serve_together():
    """They would compute wrong tokens without an error."""
    facts = [pb.ModelFacts(source=source) for source in ("a", "a", "b")]
    with pytest.raises(WorkerLostError) as raised:
        common_facts(["w:1", "x:1", "y:1"], facts)
    assert str(raised.value).startswith(
        "partition 0 (worker w:1) and partition 2 (worker y:1) have different weights or settings of the model "
        "(fetched revisions a and b): name a commit in spec.model.revision, "
    )
    assert (raised.value.reason, raised.value.worker, raised.value.outside) == (Reason.DIFFERENT_WEIGHTS, "y:1", True)


def test_workers_with_different_files_do_not_serve_together():
    """Compared are the files that two of them have: a worker needs only those of its partition."""
    files = [{"config.json": "1", "0": "a"}, {"config.json": "1", "1": "b"}, {"1": "c"}]
    facts = [pb.ModelFacts(file_digest=each) for each in files]
    workers = ["w:1", "x:1", "y:1"]
    assert common_facts(workers[:2], facts[:2]).file_digest == {"config.json": "1", "0": "a", "1": "b"}
    assert facts[0].file_digest == files[0]
    for order in ((0, 1, 2), (1, 0, 2)):
        with pytest.raises(WorkerLostError, match=r"worker x:1\) and .*worker y:1\) have different .*\(1 b and c\)"):
            common_facts([workers[index] for index in order], [facts[index] for index in order])


def test_the_revision_of_a_pipeline_is_that_of_any_worker_that_reports_it():
    """A worker of an older version reports none; other pipelines are compared with the pipeline."""
    assert common_facts(["w:1", "x:1"], [pb.ModelFacts(), pb.ModelFacts(source="a")]).source == "a"
