"""A checkpoint whose config.json ties the head to the embedding, and which stores a head all the same."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from orca_worker.checkpoint import Checkpoint
from orca_worker.errors import ModelError
from orca_worker.model_check import check_model
from safetensors.torch import load_file, save_file, save_model
from support.checkpoints import make_model
from support.partitions import PartitionedModel
from transformers import AutoModelForCausalLM

TOKENS = [5, 3, 8, 1]


def with_head(folder: Path, destination: Path, change: float) -> Path:
    """Copy a model with a tied head, and store its embedding, changed, as its head."""
    shutil.copytree(folder, destination)
    file = destination / "model.safetensors"
    weights = load_file(file)
    embedding = weights.get("model.embed_tokens.weight", weights.get("transformer.wte.weight"))
    head = embedding.clone()
    head[-1] += change
    save_file({**weights, "lm_head.weight": head}, file, {"format": "pt"})
    return destination


@pytest.mark.parametrize("change", [0.0, 0.5], ids=["equal", "different"])
@pytest.mark.parametrize(("variant", "num_partitions", "ranks"), [("llama-gqa-tied", 2, 2), ("gpt2-head64-tied", 1, 1)])
def test_a_stored_head_that_differs_is_used_as_in_transformers(
    variant, num_partitions, ranks, change, checkpoint, tmp_path, caplog
):
    path = with_head(checkpoint(variant), tmp_path / "model", change)
    with torch.inference_mode():
        expected = AutoModelForCausalLM.from_pretrained(path)(torch.tensor([TOKENS])).logits[0]
        tied = AutoModelForCausalLM.from_pretrained(checkpoint(variant))(torch.tensor([TOKENS])).logits[0]
    assert torch.equal(expected, tied) == (not change)
    model = PartitionedModel(path, num_partitions, ranks)
    logits = model.logits(model.iteration([(0, 0, TOKENS)], max_tokens=16))
    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=0)
    assert ("lm_head.weight differs from" in caplog.text) == bool(change)


@pytest.mark.parametrize(("num_partitions", "ranks"), [(1, 1), (2, 2)])
def test_a_model_saved_without_its_head_is_tied(num_partitions, ranks, checkpoint, tmp_path, caplog):
    """As Qwen3-Embedding-8B, whose tensors have no prefix; transformers would draw a head."""
    tied = checkpoint("qwen3-unprefixed-tied")
    path = shutil.copytree(tied, tmp_path / "model")
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": False}))
    check_model(path, num_partitions, ranks, 0, range(num_partitions))
    expected, model = (PartitionedModel(folder, num_partitions, ranks) for folder in (tied, path))
    part = [(0, 0, TOKENS)]
    assert torch.equal(model.logits(model.iteration(part, 16)), expected.logits(expected.iteration(part, 16)))
    assert "lm_head.weight is missing: the embedding is the head" in caplog.text


@pytest.mark.parametrize("num_partitions", [1, 2])
@pytest.mark.parametrize("variant", ["llama-gqa-tied", "gpt2-head64-tied"])
def test_a_tied_tensor_may_have_the_name_of_the_head_only(variant, num_partitions, checkpoint, tmp_path):
    """safetensors' `save_model` keeps the first name of a tensor with several."""
    path = shutil.copytree(checkpoint(variant), tmp_path / "model")
    save_model(make_model(variant), str(path / "model.safetensors"))
    names = set(load_file(path / "model.safetensors"))
    assert "lm_head.weight" in names
    assert not names & {"model.embed_tokens.weight", "transformer.wte.weight"}
    check_model(path, num_partitions, 1, 0, range(num_partitions))
    with torch.inference_mode():
        expected = AutoModelForCausalLM.from_pretrained(path)(torch.tensor([TOKENS])).logits[0]
    model = PartitionedModel(path, num_partitions)
    logits = model.logits(model.iteration([(0, 0, TOKENS)], max_tokens=16))
    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=0)


def test_an_untied_checkpoint_without_its_embedding_is_incomplete(checkpoint, tmp_path):
    path = shutil.copytree(checkpoint("mistral-gqa"), tmp_path / "model")
    weights = load_file(path / "model.safetensors")
    del weights["model.embed_tokens.weight"]
    save_file(weights, path / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelError, match=r"tensor model\.embed_tokens\.weight is missing"):
        check_model(path, 1, 1, 0, range(1))


@pytest.mark.parametrize(
    ("other", "differs"),
    [
        (torch.arange(12.0).reshape(4, 3), False),
        (torch.arange(12.0).reshape(4, 3).to(torch.bfloat16), False),
        (torch.tensor([*range(11), 0.0]).reshape(4, 3), True),
        (torch.arange(12.0).reshape(3, 4), False),
        (torch.arange(12, dtype=torch.int8).reshape(4, 3), False),
    ],
    ids=["equal", "equal in another dtype", "different", "of another shape", "integers"],
)
def test_which_heads_differ(other, differs, tmp_path, monkeypatch):
    """A head that the model could not use is left out, as before: the embedding is the head."""
    monkeypatch.setattr("orca_worker.checkpoint.CHUNK_VALUES", 6)  # two rows at a time
    save_file({"a": torch.arange(12.0).reshape(4, 3), "b": other}, tmp_path / "model.safetensors")
    checkpoint = Checkpoint(tmp_path, torch.float32, torch.device("cpu"), lambda _: None)
    assert checkpoint.differ("a", "b", (4, 3)) == differs
    assert not checkpoint.differ("a", "c", (4, 3))
