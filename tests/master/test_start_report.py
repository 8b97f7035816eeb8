"""The report of a start, line by line."""

from __future__ import annotations

from dataclasses import replace

import pytest
from orca_contract.state import EngineState, PipelinePhase, PipelineReport
from orca_contract.topology import Communication, ModelSpec, PipelineSpec, Topology
from orca_master.commands.start_report import start_report
from orca_master.engine.snapshot import EngineSnapshot, FormedPipeline

FORMED = FormedPipeline("p0", "llama", 32, "bfloat16", 4096, "C++ x86-64-v3", 8192, "as --kv-slots says; …", "L1")


def snapshot(
    formed: FormedPipeline | None,
    num_serving: int = 1,
    num_pipelines: int = 1,
    backend: str = "gloo",
    device: str | None = None,
) -> EngineSnapshot:
    topology = Topology(
        model=ModelSpec(path="/m", served_name="m"),
        pipeline_parallel_size=2,
        tensor_parallel_size=1,
        communication=Communication(backend=backend, device=device),
        pipelines=[
            PipelineSpec(id=f"p{index}", workers=[f"a:{index + 1}", f"b:{index + 1}"]) for index in range(num_pipelines)
        ],
    )
    reports = tuple(
        PipelineReport(
            id=spec.id,
            phase=PipelinePhase.SERVING if index < num_serving else PipelinePhase.LOADING,
            epoch=1,
            loaded_workers=2,
            last_failure=None,
        )
        for index, spec in enumerate(topology.pipelines)
    )
    return EngineSnapshot(EngineState.SERVING, "", topology, reports, formed=formed)


def test_one_pipeline():
    assert start_report(snapshot(FORMED), 0) == [
        "model: llama, 32 layers, bfloat16, sequences of at most 4096 tokens",
        "engine: 1 pipeline of 2 partitions (P) x 1 rank (T) on cpu (gloo)",
        "kernels: C++ x86-64-v3, level L1 of exactness",
        "K/V slots: 8192 (512 blocks of 16), as --kv-slots says; …",
    ]


def test_gpus_over_gloo():
    _, engine, *_ = start_report(snapshot(FORMED, device="cuda"), 0)
    assert engine == "engine: 1 pipeline of 2 partitions (P) x 1 rank (T) on cuda (gloo)"


@pytest.mark.parametrize(("num_serving", "words"), [(3, "3 pipelines of"), (1, "3 pipelines (1 so far) of")])
def test_several_pipelines(num_serving, words):
    """Those of a cluster are formed one after the other; the slots are those of the named one."""
    _, engine, _, slots = start_report(snapshot(FORMED, num_serving, 3, "nccl"), 0)
    assert engine == f"engine: {words} 2 partitions (P) x 1 rank (T) on cuda (nccl)"
    assert slots.startswith("K/V slots in pipeline p0: 8192 ")


def test_quantised_weights_are_named():
    model, *_ = start_report(snapshot(replace(FORMED, quantization="int8")), 0)
    assert model == "model: llama, 32 layers, bfloat16 with int8 weights, sequences of at most 4096 tokens"


def test_a_cache_of_integers_is_named():
    *_, slots = start_report(snapshot(replace(FORMED, kv_cache_dtype="int8")), 0)
    assert slots == "K/V slots: 8192 (512 blocks of 16), int8, as --kv-slots says; …"


def test_a_model_without_a_head_is_named():
    model, *_ = start_report(snapshot(replace(FORMED, embeds_only=True)), 0)
    assert model == "model: llama, 32 layers, bfloat16, sequences of at most 4096 tokens, embeddings only"


def test_what_older_workers_do_not_report_is_left_out():
    model, *others = start_report(snapshot(replace(FORMED, family="", kernels="", num_layers=1)), 0)
    assert model == "model: 1 layer, bfloat16, sequences of at most 4096 tokens"
    assert [line.split(":")[0] for line in others] == ["engine", "kernels", "K/V slots"]
    assert "kernels: level L1 of exactness" in others


def test_nothing_is_said_of_an_engine_that_has_not_served():
    assert start_report(snapshot(None), 0) == []


def test_drafted_tokens():
    engine = snapshot(FORMED)
    *_, drafts = start_report(engine, 4)
    assert drafts == "drafts: at most 4 tokens of a request at once, from repetitions of prompt and answer"
    model = engine.topology.model.model_copy(update={"draft_path": "/d"})
    engine = engine._replace(topology=engine.topology.model_copy(update={"model": model}))
    *_, drafts = start_report(engine, 1)
    assert drafts == "drafts: at most 1 token of a request at once, from the model /d"
