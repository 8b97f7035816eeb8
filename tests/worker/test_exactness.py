"""Exactness level L2: which partitions have it, and that the self-test finds a result that depends on the batch."""

from __future__ import annotations

import pytest
import torch
from orca_kernels.cpu.targets import TARGETS
from orca_protos import engine_pb2 as pb
from orca_worker.errors import ModelError
from orca_worker.exactness import self_test
from orca_worker.model_config import read_model_config
from orca_worker.stage import Stage
from support.checkpoints import VARIANTS

BLOCKS = 4


def stage(path, **fields) -> Stage:
    request = pb.LoadRequest(
        **{"model_path": str(path), "pipeline_parallel_size": 1, "tensor_parallel_size": 1, "dtype": "float32",
           "device": "cpu", "workers_on_host": 1, "deterministic": True, **fields},
    )  # fmt: skip
    return Stage(request, 0, lambda _: None)


@pytest.mark.parametrize("partition", [0, 1])
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_partition_has_the_level_or_says_why_not(variant, partition, checkpoint):
    """The C++ needs head dimensions that are multiples of 16, and does not cap scores as Gemma 2 does."""
    path = checkpoint(variant)
    if variant.startswith("gemma2") or read_model_config(path).head_dim % 16:
        with pytest.raises(ModelError, match="of plain torch has no fixed order"):
            stage(path, partition=partition, pipeline_parallel_size=2)
        return
    loaded = stage(path, partition=partition, pipeline_parallel_size=2)
    assert loaded.facts().deterministic
    loaded.prepare(1)
    loaded.allocate(BLOCKS)


def test_a_cache_of_integers_has_the_level(checkpoint):
    """What is stored of a token depends neither on its chunk nor on other requests."""
    loaded = stage(checkpoint("llama-gqa-tied"), kv_cache_dtype="int8")
    loaded.prepare(1)
    loaded.allocate(BLOCKS)
    assert (loaded.facts().deterministic, loaded.facts().kv_cache_dtype) == (True, "int8")


def test_other_types_are_refused(checkpoint):
    with pytest.raises(ModelError, match="computed in bfloat16, add --dtype float32"):
        stage(checkpoint("llama-gqa-tied"), dtype="bfloat16")


def test_a_processor_whose_products_are_those_of_onednn_is_refused(checkpoint, monkeypatch):
    monkeypatch.setattr("orca_kernels.cpu.library.usable_targets", lambda flags: [TARGETS[-1]])
    with pytest.raises(ModelError, match=r"kernels of this processor \(C\+\+ x86-64\) have no fixed order"):
        stage(checkpoint("llama-gqa-tied"))


def test_too_few_slots_for_the_self_test_are_named(checkpoint):
    loaded = stage(checkpoint("llama-gqa-tied"))
    loaded.prepare(1)
    with pytest.raises(ModelError, match="needs 32 K/V slots, raise --kv-slots"):
        loaded.allocate(1)


@pytest.mark.parametrize("length", [10, 704])
def test_results_that_depend_on_the_chunk_or_on_the_others_fail(length):
    def exact(iteration: pb.Iteration) -> torch.Tensor:
        """Return the sum of each token's id and position."""
        rows = zip(iteration.context_length, iteration.num_tokens, strict=True)
        positions = torch.cat([torch.arange(context, context + count) for context, count in rows])
        return (positions + torch.tensor(iteration.token)).double().unsqueeze(1)

    def by_chunk(iteration: pb.Iteration) -> torch.Tensor:
        return exact(iteration) * (1 + 1e-7 * (len(iteration.token) > 1))

    def by_others(iteration: pb.Iteration) -> torch.Tensor:
        return exact(iteration) * (1 + 1e-7 * (len(iteration.row) > 1))

    self_test(exact, 211, length, 100)
    for run in (by_chunk, by_others):
        with pytest.raises(ModelError, match="self-test failed: token"):
            self_test(run, 211, length, 100)
