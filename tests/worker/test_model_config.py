"""What a model directory may hold, and the one line that says why another one is refused."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import pytest
import torch
from orca_worker.checkpoint import Checkpoint, Scope
from orca_worker.errors import ModelError
from orca_worker.model_check import check_model
from orca_worker.model_config import read_model_config
from safetensors.torch import load_file, save_file
from support.partitions import PartitionedModel
from support.variants import ONE_PER_FAMILY
from transformers import AutoConfig, AutoModelForCausalLM, MistralConfig, Qwen2Config, Qwen3Config

CPU = torch.device("cpu")


def edit(path, **changes):
    config = json.loads((path / "config.json").read_text())
    config.update(changes)
    (path / "config.json").write_text(json.dumps({key: value for key, value in config.items() if value is not ...}))


@pytest.fixture
def copy(checkpoint, tmp_path):
    def copied(name):
        return shutil.copytree(checkpoint(name), tmp_path / name)

    return copied


@pytest.mark.parametrize(
    ("variant", "changes", "message"),
    [
        ("gpt2-head64-tied", {"architectures": ["BertModel"]}, "architecture BertModel is not supported"),
        ("gpt2-head64-tied", {"architectures": None}, "architecture none is not supported"),
        ("gpt2-head64-tied", {"n_head": 7}, "hidden size 128 is not a multiple of the 7 heads"),
        ("gpt2-head64-tied", {"n_layer": ...}, "n_layer is missing"),
        ("gpt2-head64-tied", {"activation_function": "relu"}, "activation_function 'relu' is not supported"),
        ("gpt2-head64-tied", {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx True"),
        ("llama-gqa-tied", {"hidden_act": "gelu"}, "hidden_act 'gelu' is not supported"),
        ("llama-gqa-tied", {"rope_parameters": {"rope_type": "longrope", "rope_theta": 1e4}}, "rope_type 'longrope'"),
        ("llama-gqa-tied", {"dtype": "float64"}, "dtype 'float64' is not supported"),
        ("gemma2-gqa-tied", {"query_pre_attn_scalar": 1e-300}, "query_pre_attn_scalar"),
        ("gemma2-gqa-tied", {"attn_logit_softcapping": 1e-300}, "attn_logit_softcapping"),
        ("gemma2-gqa-tied", {"sliding_window": None}, "sliding_window is 0 or null"),
        ("llama-gqa-tied", {"architectures": ["BertModel"]}, "architecture BertModel is not supported"),
        ("llama-gqa-tied", {"architectures": ["MistralBiModel"]}, "architecture MistralBiModel is not supported"),
        ("llama-gqa-tied", {"architectures": ["Model"]}, "architecture Model is not supported"),
        ("qwen2-head80", {"architectures": ["Qwen2Model"], "is_causal": False}, "is_causal False is not supported"),
    ],
)
def test_a_config_that_is_not_supported_is_named(copy, variant, changes, message):
    path = copy(variant)
    edit(path, **changes)
    with pytest.raises(ModelError, match=message):
        read_model_config(path)


@pytest.mark.parametrize("variant", sorted(ONE_PER_FAMILY))
def test_attention_to_later_tokens_is_refused_in_every_family(copy, variant):
    """As models of embeddings have it: transformers reads the field for each of these families."""
    path = copy(variant)
    for value in (True, None):
        edit(path, is_causal=value)
        read_model_config(path)
    edit(path, is_causal=False)
    with pytest.raises(ModelError, match=r"is_causal False is not supported: True is$"):
        read_model_config(path)


@pytest.mark.parametrize("variant", sorted(ONE_PER_FAMILY))
@pytest.mark.parametrize("prefixed", [False, True])
def test_the_model_without_a_head_of_each_family_only_embeds(copy, variant, prefixed, tmp_path):
    """As AutoModel saves it, or with the names of the whole model's tensors; the table is read for both purposes."""
    whole = copy(variant)
    model = AutoModelForCausalLM.from_pretrained(whole)
    path = tmp_path / "headless"
    model.base_model.save_pretrained(path)
    (name,) = json.loads((path / "config.json").read_text())["architectures"]
    assert name == type(model.base_model).__name__
    assert name.endswith("Model")
    if prefixed:
        weights = load_file(path / "model.safetensors")
        weights = {f"{model.base_model_prefix}.{tensor}": values for tensor, values in weights.items()}
        save_file(weights, path / "model.safetensors", {"format": "pt"})
    edit(path, tie_word_embeddings=False)
    config, original = check_model(path, 2, 1, 0, range(2)).config, read_model_config(whole)
    assert config == replace(original, tied_head=True, embeds_only=True)
    assert not original.embeds_only


def test_older_rope_fields_mean_the_same(copy):
    path = copy("llama-gqa-tied")
    new = read_model_config(path)
    edit(path, rope_parameters=..., rope_theta=5000.0, rope_scaling=None)
    assert read_model_config(path) == new


@pytest.mark.parametrize(
    "changes",
    [
        {"sliding_window": 0},
        {"sliding_window": -1, "use_sliding_window": "auto"},
        {"layer_types": ["chunked_attention"]},
        {"layer_types": "none", "max_window_layers": -1},
        {"architectures": ["Qwen2ForCausalLM"], "sliding_window": 0, "layer_types": ["linear_attention"] * 9},
        {"architectures": ["MistralForCausalLM"], "sliding_window": None, "layer_types": 1, "max_window_layers": -1},
        {"rope_scaling": False},
        {"rope_parameters": False},
        {"max_position_embeddings": 256.0},
        {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "original_max_position_embeddings": 128.0}},
    ],
    ids=json.dumps,
)
def test_fields_that_a_family_does_not_use_and_whole_floats(copy, changes):
    path = copy("llama-gqa-tied")
    edit(path, **changes)
    config = read_model_config(path)
    assert set(config.windows) == {None}
    assert isinstance(config.max_positions, int)
    assert isinstance(config.rope.original_max_positions, int)


@pytest.mark.parametrize(("value", "window"), [(..., 4096), (None, None), (40, 40), (0, None)])
def test_the_window_of_mistral(copy, value, window):
    """A file without the field has transformers' default; 0, with which no token would see any, counts as null."""
    path = copy("mistral-gqa")
    edit(path, sliding_window=value)
    assert (
        set(read_model_config(path).windows) == {window} == {MistralConfig.from_pretrained(path).sliding_window or None}
    )


@pytest.mark.parametrize("kinds", [["full_attention", *["sliding_attention"] * 4], ["full_attention"] * 5, None])
def test_the_windows_of_ministral(copy, kinds):
    """A Mistral with layer_types is a Ministral, as in transformers' AutoConfig."""
    path = copy("mistral-gqa")
    edit(path, layer_types=kinds)
    theirs = AutoConfig.from_pretrained(path)
    windows = [theirs.sliding_window if kind == "sliding_attention" else None for kind in theirs.layer_types]
    assert list(read_model_config(path).windows) == windows
    edit(path, layer_types=["full_attention"] * 4)
    with pytest.raises(ModelError, match="layer_types has 4 entries, but the model has 5 layers"):
        read_model_config(path)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"sliding_window": None},
        {"sliding_window": None, "max_window_layers": -1, "layer_types": 1},
        {"sliding_window": 40},
        {"max_window_layers": 2},
        {"max_window_layers": 2, "sliding_window": 40},
        {"layer_types": ["sliding_attention", *["full_attention"] * 4]},
        {"use_sliding_window": False, "max_window_layers": 2},
        {"use_sliding_window": ..., "max_window_layers": 2},
    ],
    ids=repr,
)
@pytest.mark.parametrize(("variant", "config"), [("qwen2-gqa-tied", Qwen2Config), ("qwen3-gqa-tied", Qwen3Config)])
def test_the_windows_of_qwen(copy, variant, config, changes):
    """Fields that the file lacks have transformers' defaults: a window of 4096, from layer 28 on."""
    path = copy(variant)
    edit(
        path,
        **{"use_sliding_window": True, "sliding_window": ..., "max_window_layers": ..., "layer_types": ...} | changes,
    )
    windows = read_model_config(path).windows
    if changes.get("layer_types") == 1:  # transformers refuses what the model does not use
        assert set(windows) == {None}
        return
    theirs = config.from_pretrained(path)
    assert list(windows) == [
        theirs.sliding_window if kind == "sliding_attention" else None for kind in theirs.layer_types
    ]


@pytest.mark.parametrize("value", [256.5, True, "256", 0.0, 1e300])
def test_what_is_no_count(copy, value):
    path = copy("llama-gqa-tied")
    edit(path, max_position_embeddings=value)
    with pytest.raises(ModelError, match="max_position_embeddings"):
        read_model_config(path)


def test_missing_and_damaged_config(tmp_path):
    with pytest.raises(ModelError, match=r"config\.json: No such file"):
        read_model_config(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ModelError, match=r"config\.json: not JSON"):
        read_model_config(tmp_path)


def test_layers_are_spread_and_the_last_partition_is_never_larger(checkpoint):
    config = read_model_config(checkpoint("gpt2-head64-tied"))
    assert [list(config.layers_of(p, 2)) for p in range(2)] == [[0, 1, 2], [3, 4]]
    assert [list(config.layers_of(p, 3)) for p in range(3)] == [[0, 1], [2, 3], [4]]
    config.check_fits(5, 1)
    with pytest.raises(ModelError, match="pipeline-parallel-size 6 does not fit: the model has 5 layers, so 1 to 5"):
        config.check_fits(6, 1)


def test_each_rank_has_a_token(checkpoint):
    config = replace(read_model_config(checkpoint("gpt2-head64-tied")), vocabulary_size=1)
    config.check_fits(1, 1)
    with pytest.raises(ModelError, match="tensor-parallel-size 2 does not fit: the model has 1 tokens, fewer than"):
        config.check_fits(1, 2)


def test_weights_that_are_missing_or_misshapen(copy):
    path = copy("gpt2-head64-tied")
    weights = load_file(path / "model.safetensors")
    name = "transformer.h.3.mlp.c_fc.weight"
    save_file({**weights, name: weights[name][:, :5].contiguous()}, path / "model.safetensors")
    with pytest.raises(ModelError, match=rf"tensor {name} has shape \[128, 5\], \[128, 512\] is expected"):
        PartitionedModel(path, 1)
    save_file({key: value for key, value in weights.items() if key != name}, path / "model.safetensors")
    with pytest.raises(ModelError, match=f"tensor {name} is missing"):
        PartitionedModel(path, 2)
    (path / "model.safetensors").write_bytes(b"not a safetensors file")
    with pytest.raises(ModelError, match=r"model\.safetensors: "):
        PartitionedModel(path, 1)
    (path / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"no weights: model\.safetensors or"):
        PartitionedModel(path, 1)
    (path / "pytorch_model.bin").touch()
    with pytest.raises(ModelError, match="pickled weights are not supported"):
        PartitionedModel(path, 1)


def test_an_untied_head_that_is_missing_is_named(copy):
    path = copy("qwen3-gqa-tied")
    edit(path, tie_word_embeddings=False)
    with pytest.raises(ModelError, match=r"lm_head\.weight is missing and tie_word_embeddings is false: the weights"):
        check_model(path, 1, 1, 0, range(1))


def test_sharded_weights_and_names_without_prefix(copy):
    """An index over two files, and GPT-2's first checkpoints, which had no `transformer.` in front."""
    path = copy("gpt2-head64-tied")
    expected = PartitionedModel(path, 1)
    weights = {
        name.removeprefix("transformer."): value for name, value in load_file(path / "model.safetensors").items()
    }
    (path / "model.safetensors").unlink()
    names = sorted(weights)
    weight_map = {}
    for file, part in (("a.safetensors", names[::2]), ("b.safetensors", names[1::2])):
        save_file({name: weights[name] for name in part}, path / file)
        weight_map |= dict.fromkeys(part, file)
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    sharded = PartitionedModel(path, 1)
    part = [(0, 0, [1, 2, 3])]
    assert torch.equal(sharded.logits(sharded.iteration(part, 16)), expected.logits(expected.iteration(part, 16)))


def test_scope_reads_below_its_prefix(checkpoint):
    weights = Checkpoint(checkpoint("llama-gqa-tied"), torch.bfloat16, CPU, lambda _: None)
    norm = Scope(weights)["model"]["layers"][4]["input_layernorm"]
    assert "weight" in norm
    assert norm.read("weight", 96).dtype is torch.bfloat16
