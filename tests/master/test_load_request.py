"""What the workers of a pipeline load."""

from __future__ import annotations

import dataclasses

import pytest
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
    with pytest.raises(WorkerLostError, match="workers x:1 and y:1 have different revisions of the model"):
        common_facts(["w:1", "x:1", "y:1"], facts)
