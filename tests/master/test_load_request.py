"""What the workers of a pipeline load."""

from __future__ import annotations

import dataclasses

import pytest
from orca_contract.topology import ModelSpec, PipelineSpec, Topology
from orca_master.engine.config import EngineConfig
from orca_master.engine.load_request import load_requests

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
