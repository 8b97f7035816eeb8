"""`quantization_config`: what is read, and the one line that says why another one is refused."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from orca_protos.model_files import FileError
from orca_worker.errors import ModelError
from orca_worker.model_config import read_model_config
from orca_worker.quantized_checkpoints.quantization_config import check_use, read_weight_format
from support.quantized_writer import Scheme

GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128}
WEIGHTS = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 128}
ACTIVATIONS = {"num_bits": 8, "type": "int", "symmetric": True, "dynamic": True, "strategy": "token"}


def compressed(weights=None, group=None, **fields):
    """Return the object of a compressed-tensors checkpoint with changed fields."""
    return {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {
            "group_0": {"targets": ["Linear"], "weights": {**WEIGHTS, **(weights or {})}, **(group or {})}
        },
        **fields,
    }


def w8a8(weights=None, activations=None, **fields):
    """Return the object of a checkpoint with quantised activations, with changed fields."""
    return compressed(
        {"num_bits": 8, "strategy": "channel", "group_size": None, **(weights or {})},
        {"input_activations": {**ACTIVATIONS, **(activations or {})}},
        **{"format": "int-quantized", **fields},
    )


def read(fields):
    return read_weight_format({"quantization_config": fields}, Path("config.json"))


@pytest.mark.parametrize(
    ("fields", "name", "group_size"),
    [
        (GPTQ, "gptq int4", 128),
        ({**GPTQ, "bits": 8, "group_size": -1, "checkpoint_format": "gptq_v2", "dataset": None}, "gptq int8", -1),
        ({**GPTQ, "format": "gptq_v2", "dynamic": {"-:lm_head": {}, "+:.*": {"bits": 4}}}, "gptq int4", 128),
        ({**AWQ, "version": "GEMM", "modules_to_not_convert": None}, "awq int4", 128),
        (compressed(), "compressed-tensors int4", 128),
        (compressed({"strategy": "channel", "group_size": None}), "compressed-tensors int4", -1),
        (
            compressed({"num_bits": 8}, {"format": "int-quantized"}, format="mixed-precision"),
            "compressed-tensors int8",
            128,
        ),
        (
            compressed(sparsity_config={"format": "dense", "targets": []}, kv_cache_scheme=None, ignore=["lm_head"]),
            "compressed-tensors int4",
            128,
        ),
        (w8a8(), "compressed-tensors w8a8", -1),
        (w8a8({"strategy": "tensor"}, {"observer": None, "actorder": None}), "compressed-tensors w8a8", -1),
    ],
)
def test_supported_fields(fields, name, group_size):
    weight_format = read(fields)
    assert (weight_format.name, weight_format.group_size) == (name, group_size)


def test_the_versions_of_gptq():
    assert [read(Scheme(kind).config()).less_one for kind in ("gptq", "gptq_v2")] == [True, False]
    assert read(GPTQ).less_one
    assert read_weight_format({"quantization_config": None}, Path("config.json")) is None


REFUSED = [
    ("x", "quantization_config 'x': an object is expected"),
    ({}, "quantization_config.quant_method None is not supported: gptq, awq, compressed-tensors are; serve the unq"),
    ({"quant_method": "bitsandbytes"}, "quantization_config.quant_method 'bitsandbytes' is not supported"),
    ({"quant_method": ["gptq"]}, "quantization_config.quant_method a list of 1 is not supported"),
    ({"quant_method": "gptq", "bits": 4}, "quantization_config.group_size is missing"),
    ({**GPTQ, "bits": "4"}, "quantization_config.bits '4': Input should be a valid integer"),
    ({**GPTQ, "bits": -4}, "quantization_config.bits -4: weights of 4 and 8 bits are supported"),
    ({**GPTQ, "bits": 3}, "quantization_config.bits 3: weights of 4 and 8 bits are supported"),
    ({**GPTQ, "group_size": 0}, "quantization_config.group_size 0: a multiple of 8, or -1"),
    ({**GPTQ, "group_size": -128}, "quantization_config.group_size -128: Input should be greater than or equal to -1"),
    ({**GPTQ, "checkpoint_format": "marlin"}, "quantization_config.checkpoint_format 'marlin' is not supported"),
    ({**GPTQ, "is_marlin_format": True}, "quantization_config.is_marlin_format True is not supported"),
    ({**GPTQ, "pack_dtype": "int16"}, "quantization_config.pack_dtype 'int16' is not supported: int32 is"),
    ({**GPTQ, "dynamic": {"+:.*down.*": {"bits": 8}}}, "quantization_config.dynamic '+:.*down.*' is not supported"),
    ({**AWQ, "version": "gemv"}, "quantization_config.version 'gemv' is not supported: gemm is"),
    ({**AWQ, "bits": 8}, "quantization_config.bits 8: weights of 4 bits are supported for awq"),
    (compressed(config_groups={}), "quantization_config.config_groups a dict of 0: "),
    (compressed(config_groups={"W8A8": ["Linear"]}), "quantization_config.config_groups.W8A8 a list of 1: "),
    (compressed({"num_bits": 2}), "quantization_config.config_groups.group_0.weights: bits 2: weights of 4 and 8"),
    (compressed({"type": "float"}), "quantization_config.config_groups.group_0.weights.type 'float' is not supported"),
    (compressed({"dynamic": True}), "config_groups.group_0.weights.dynamic True is not supported"),
    (compressed({"strategy": "block"}), "config_groups.group_0.weights.strategy 'block' is not supported"),
    (compressed({"group_size": None}), "quantization_config.config_groups.group_0.weights.group_size is missing"),
    (compressed({"group_size": 0}), "quantization_config.config_groups.group_0.weights: group_size 0: "),
    (compressed(group={"weights": None}), "quantization_config.config_groups.group_0.weights is missing"),
    (
        compressed({"num_bits": 8, "strategy": "channel"}, {"input_activations": {"num_bits": 8}}),
        "config_groups.group_0.input_activations.dynamic None is not supported: true is (a scale for each token)",
    ),
    (compressed(group={"output_activations": {"num_bits": 8}}), "config_groups.group_0.output_activations a dict of 1"),
    (compressed(format="float-quantized"), "quantization_config.format 'float-quantized' is not supported"),
    (compressed(format="nvfp4-pack-quantized"), "quantization_config.format 'nvfp4-pack-quantized' is not supported"),
    (compressed(format="marlin-24"), "quantization_config.format 'marlin-24' is not supported"),
    (
        compressed(sparsity_config={"format": "sparse-24-bitmask"}),
        "quantization_config.sparsity_config.format 'sparse-24-bitmask' is",
    ),
    (compressed(kv_cache_scheme={"num_bits": 8}), "quantization_config.kv_cache_scheme a dict of 1 is not supported"),
    (compressed(transform_config={"config_groups": {}}), "quantization_config.transform_config a dict of 1 is not"),
    (
        compressed(quantization_status="initialized"),
        "quantization_config.quantization_status 'initialized' is not",
    ),
    (
        compressed(config_groups={"a": {"weights": WEIGHTS}, "b": {"weights": {**WEIGHTS, "num_bits": 8}}}),
        "quantization_config.config_groups a list of 2 is not supported: the same weights in all groups are",
    ),
    (
        w8a8({}, {"dynamic": False, "strategy": "tensor"}),
        "config_groups.group_0.input_activations.dynamic False is not supported: true is (a scale for each token)",
    ),
    (w8a8({}, {"dynamic": "local"}), "config_groups.group_0.input_activations.dynamic 'local' is not supported"),
    (w8a8({}, {"strategy": "tensor"}), "config_groups.group_0.input_activations.strategy 'tensor' is not supported"),
    (w8a8({}, {"type": "float"}), "config_groups.group_0.input_activations.type 'float' is not supported: int is"),
    (w8a8({}, {"num_bits": 4}), "config_groups.group_0.input_activations.num_bits 4 is not supported: 8 is"),
    (w8a8({}, {"symmetric": False}), "config_groups.group_0.input_activations.symmetric False is not supported"),
    (w8a8({"symmetric": False}), "config_groups.group_0.weights.symmetric False is not supported: true is, with"),
    (w8a8({"num_bits": 4}), "config_groups.group_0.weights.num_bits 4 is not supported: 8 is, with"),
    (
        w8a8({"strategy": "group", "group_size": 128}),
        "config_groups.group_0.weights.strategy 'group' is not supported: channel and tensor are, with",
    ),
    (w8a8(format="pack-quantized"), "quantization_config.format 'pack-quantized' is not supported: int-quantized is,"),
    (
        compressed(config_groups={**w8a8()["config_groups"], "b": {"weights": {**WEIGHTS, "num_bits": 8}}}),
        "is not supported: int-quantized is, with quantised activations",
    ),
]


@pytest.mark.parametrize(("fields", "message"), REFUSED)
def test_what_is_refused_is_named(fields, message):
    with pytest.raises((ModelError, FileError), match=re.escape(message)):
        read(fields)


def test_the_formats_of_gpt2(checkpoint, tmp_path):
    """Its weights are stored as [inputs, outputs]; only GPTQ's writers quantise them."""
    path = shutil.copytree(checkpoint("gpt2-head64-tied"), tmp_path / "model")
    config = json.loads((path / "config.json").read_text())
    for fields, refused in ((GPTQ, False), (AWQ, True), (compressed(), True)):
        (path / "config.json").write_text(json.dumps(config | {"quantization_config": fields}))
        if refused:
            with pytest.raises(ModelError, match=r"json: quantization_config: \S+ has no weights of family gpt2"):
                read_model_config(path)
        else:
            assert read_model_config(path).weight_format.name == "gptq int4"


@pytest.mark.parametrize(
    ("fields", "quantization", "device", "message"),
    [
        (GPTQ, "int8", "cpu", "already (gptq int4), which --quantization int8 contradicts: leave the option out"),
        ({**GPTQ, "bits": 8}, "int4", "cpu", "already (gptq int8), which --quantization int4"),
        (AWQ, "none", "cuda", "the CUDA kernels lack products of quantised weights (awq int4): use a CPU, or the unq"),
        (w8a8(), "int8", "cpu", "already (compressed-tensors w8a8), which --quantization int8 contradicts"),
        ({**GPTQ, "bits": 8}, "w8a8", "cpu", "already (gptq int8), which --quantization w8a8 contradicts"),
        ({**GPTQ, "bits": 8}, "w4a8", "cpu", "already (gptq int8), which --quantization w4a8 contradicts"),
    ],
)
def test_options_that_contradict_the_checkpoint(fields, quantization, device, message):
    check_use(read(fields), "none", "cpu")
    check_use(read(fields), f"int{fields['bits']}" if "bits" in fields else "w8a8", "cpu")
    check_use(None, quantization, device)
    with pytest.raises(ModelError, match=re.escape(message)):
        check_use(read(fields), quantization, device)
