"""Which fields of config.json the rotary positions follow; their frequencies are compared in test_logits.py."""

from __future__ import annotations

import copy

import pytest
import torch
from orca_worker.errors import ModelError
from orca_worker.rope import RotaryFile, inverse_frequencies, read_rope
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}


def file_of(**fields: object) -> RotaryFile:
    return RotaryFile.model_validate({"vocab_size": 8, "max_position_embeddings": 32768, **fields})


@pytest.mark.parametrize(
    "fields",
    [
        {"rope_scaling": YARN, "rope_theta": 1e6},
        {"rope_scaling": YARN, "rope_theta": 1e6, "rope_parameters": {}},
        {"rope_scaling": YARN, "rope_theta": 1e6, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}},
        {"rope_scaling": {**YARN, "rope_theta": 1e6}, "rope_parameters": {"rope_type": "default", "rope_theta": 5e5}},
        {"rope_parameters": {**YARN, "rope_theta": 1e6}},
        {"rope_parameters": {**YARN, "rope_theta": 1e6}, "rope_scaling": False},
    ],
)
def test_a_scaling_holds_in_either_form_as_in_transformers(fields):
    rope = read_rope(file_of(**fields))
    given = {name: copy.deepcopy(value) for name, value in fields.items() if value}  # transformers adds to them
    expected = LlamaConfig(max_position_embeddings=32768, **given).rope_parameters
    assert (rope.type, rope.theta) == (expected["rope_type"], expected["rope_theta"]) == ("yarn", 1e6)


@pytest.mark.parametrize("kind", [{"rope_type": "llama3"}, {"type": "llama3", "rope_theta": None}])
def test_a_scaling_that_repeats_the_parameters_drops_nothing(kind):
    parameters = {"rope_type": "llama3", "factor": 8.0, "rope_theta": 5e5, "original_max_position_embeddings": 8192}
    rope = read_rope(file_of(rope_scaling={**kind, "factor": 8.0}, rope_parameters=parameters))
    assert (rope.type, rope.theta, rope.original_max_positions) == ("llama3", 5e5, 8192)


def test_a_scaling_that_would_drop_the_base_is_refused():
    """As model cards tell users to add it, to a file of transformers 5."""
    both = file_of(rope_scaling=YARN, rope_parameters={"rope_type": "default", "rope_theta": 1e6})
    with pytest.raises(ModelError, match=r"rope_scaling replaces rope_parameters: .* rope_theta 1e\+06"):
        read_rope(both)


BANDS = {"low_freq_factor": 1.0, "high_freq_factor": 4.0}


@pytest.mark.parametrize(
    "fields",
    [
        {"rope_parameters": {"rope_type": "dynamic", "factor": 4.0, "original_max_position_embeddings": 8192}},
        {"rope_parameters": {"rope_type": "yarn", "factor": 4.0}, "original_max_position_embeddings": 8192},
        {"rope_parameters": YARN, "original_max_position_embeddings": 8192},
        {"rope_parameters": {"rope_type": "llama3", "factor": 8.0, **BANDS}, "original_max_position_embeddings": 8192},
        {"rope_parameters": {"rope_type": "llama3", "factor": 8.0, **BANDS, "original_max_position_embeddings": 4096}},
    ],
    ids=["dynamic", "yarn, beside", "yarn, both", "llama3, beside", "llama3, among"],
)
def test_the_length_before_scaling_is_read_as_in_transformers(fields):
    """`dynamic` stretches max_position_embeddings; a field beside the parameters overrides theirs."""
    fields = {**fields, "rope_theta": 5e5}
    config = LlamaConfig(max_position_embeddings=32768, head_dim=64, **copy.deepcopy(fields))
    frequencies, _ = inverse_frequencies(read_rope(file_of(**fields)), 64, 32768, torch.device("cpu"))
    torch.testing.assert_close(frequencies, LlamaRotaryEmbedding(config).inv_freq)


@pytest.mark.parametrize(
    ("positions", "scaling", "longest"),
    [
        (32768, YARN, 131072),
        (40960, YARN, 131072),
        (163840, {**YARN, "original_max_position_embeddings": 4096, "factor": 40.0}, 163840),
        (2048, {"rope_type": "linear", "factor": 2.5}, 5120),
        (131072, {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192}, 131072),
        (2048, {"rope_type": "default"}, 2048),
        (4096, {"rope_type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 2048}, 8192),
    ],
)
def test_a_scaling_supports_as_many_positions_as_it_stretches_to(positions, scaling, longest):
    rope = read_rope(file_of(max_position_embeddings=positions, rope_parameters=scaling))
    assert rope.longest(positions) == longest
