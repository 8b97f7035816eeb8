"""The tensors that are checked before a load are those that the models read, and the values are checked while read."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from orca_worker.checkpoint import Checkpoint
from orca_worker.errors import ModelError
from orca_worker.model_check import check_model
from orca_worker.model_config import read_model_config
from orca_worker.weight_headers import INDEX, WeightHeaders
from safetensors.torch import load_file, save_file
from support.checkpoints import VARIANTS
from support.partitions import PartitionedModel

CPU = torch.device("cpu")


@pytest.mark.parametrize("name", VARIANTS)
def test_the_tensors_that_are_checked_are_those_that_are_read(checkpoint, name, monkeypatch):
    path = checkpoint(name)
    read: set[tuple[str, tuple[int, ...]]] = set()
    original = Checkpoint.read

    def recording(self, tensor, shape, *arguments, **options):
        read.add((tensor, shape))
        return original(self, tensor, shape, *arguments, **options)

    monkeypatch.setattr(Checkpoint, "read", recording)
    for num_partitions in (1, 3):
        read.clear()
        PartitionedModel(path, num_partitions)
        config = read_model_config(path)
        stored = WeightHeaders(path).file_of
        checked = set()
        for partition in range(num_partitions):
            checked |= set(config.tensors(partition, num_partitions, stored))
            assert check_model(path, num_partitions, 1, 0, range(partition, partition + 1)).config == config
        assert read == checked


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_weights_that_are_not_finite(tmp_path, value, dtype):
    weights = torch.ones(300, 7, dtype=dtype)
    weights[299, 6] = value
    save_file({"bad": weights, "good": torch.full((70_000,), 60_000.0).to(dtype)}, tmp_path / "model.safetensors")
    found = Checkpoint(tmp_path, torch.float32, CPU, lambda _: None)
    assert found.read("good", (70_000,)).isfinite().all(), "the sum of sound values may overflow their dtype"
    assert found.read("bad", (300, 7), (slice(0, 200),)).isfinite().all(), "only what is read is looked at"
    with pytest.raises(ModelError, match="tensor bad has values that are NaN or infinite"):
        found.read("bad", (300, 7))


def test_a_folder_with_the_files_of_one_partition(checkpoint, tmp_path):
    """As `orca fetch --partition` leaves it: the index names all files, those of other partitions are not here."""
    path = shutil.copytree(checkpoint("llama-gqa-tied"), tmp_path / "model")
    weights = load_file(path / "model.safetensors")
    (path / "model.safetensors").unlink()
    last = {name for name in weights if any(f"layers.{layer}." in name for layer in (3, 4)) or "norm.w" in name}
    weight_map = {name: "here.safetensors" if name in last | {"model.embed_tokens.weight"} else "away.safetensors"
                  for name in weights}  # fmt: skip
    here = {name: value for name, value in weights.items() if weight_map[name] == "here.safetensors"}
    save_file(here, path / "here.safetensors")
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    check_model(path, 2, 1, 0, range(1, 2))
    with pytest.raises(ModelError, match=r"away\.safetensors: No such file"):
        check_model(path, 2, 1, 0, range(1))


def test_a_single_file_is_read_although_an_index_is_left_of_another_save(checkpoint, tmp_path):
    """As transformers reads such a folder: `save_pretrained` removes the files that an index names, not the index."""
    path = shutil.copytree(checkpoint("llama-gqa-tied"), tmp_path / "model")
    (path / INDEX).write_text(json.dumps({"weight_map": {"model.norm.weight": "model-00001-of-00002.safetensors"}}))
    check_model(path, 1, 1, 0, range(1))
    (path / "model.safetensors").rename(path / "other.safetensors")
    with pytest.raises(ModelError, match="the weights have no layer 0"):
        check_model(path, 1, 1, 0, range(1))
