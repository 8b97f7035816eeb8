"""Models of GPTQ, AWQ and compressed-tensors checkpoints against `transformers` with the dequantised weights."""

from __future__ import annotations

import json
import logging
import re
import shutil
from copy import deepcopy
from dataclasses import replace

import pytest
import torch
from orca_kernels.quantization import QuantizedWeight
from orca_kernels.reference import ReferenceKernels
from orca_protos import engine_pb2 as pb
from orca_worker.errors import ModelError
from orca_worker.loaded_partition import load_partition
from orca_worker.model_check import check_model, main
from orca_worker.weight_headers import WeightHeaders
from safetensors.torch import load_file, save_file
from support.checkpoints import make_prompts, reference
from support.fake_quantization import round_inputs
from support.partitions import PartitionedModel
from support.quantized_models import CASES, ONE_PER_FORMAT, W4A8_CASES, W8A8_CASES, make_quantised
from support.quantized_writer import edit_config
from support.variants import one_short

NUM_TOKENS = 12


def logits_of(model, tokens, num_first):
    """Return the logits after every token, the first ones in one iteration and the others one by one."""
    logits = [model.logits(model.iteration([(0, 0, tokens[:num_first])], max_tokens=176))]
    for place in range(num_first, len(tokens)):
        logits.append(model.logits(model.iteration([(0, place, [tokens[place]])], max_tokens=176)))
    return torch.cat(logits)


@pytest.mark.parametrize(
    "name", [name if name in ONE_PER_FORMAT else pytest.param(name, marks=pytest.mark.long) for name in CASES]
)
def test_logits_and_greedy_tokens_equal_those_of_transformers(name, tmp_path):
    case = CASES[name]
    theirs = make_quantised(case, tmp_path)
    for prompt in make_prompts((3, 150)):
        expected = reference(theirs, prompt, NUM_TOKENS)
        tokens = [*expected.prompt, *expected.greedy][:-1]
        ours = PartitionedModel(tmp_path, case.partitions, case.ranks)
        logits = logits_of(ours, tokens, len(prompt))
        torch.testing.assert_close(logits, expected.logits, atol=1e-4, rtol=0)
        assert logits[len(prompt) - 1 :].argmax(1).tolist() == expected.greedy


@pytest.mark.parametrize("name", one_short(W8A8_CASES, "w8a8, two ranks, head"))
def test_checkpoints_with_quantised_activations(name, tmp_path):
    case = W8A8_CASES[name]
    check_quantised_activations(case, tmp_path, "none", "compressed-tensors w8a8")


@pytest.mark.parametrize("name", one_short(W4A8_CASES, "gptq"))
def test_checkpoints_of_four_bits_with_activations_of_eight(name, tmp_path):
    case = W4A8_CASES[name]
    check_quantised_activations(case, tmp_path, "w4a8", f"{case.scheme.method} w4a8", case.scheme.group)


def check_quantised_activations(case, path, quantization, served_as, group=None):
    """Logits are those of transformers with rounded inputs, up to inputs that two sums round to different integers.

    `group`: inputs that are rounded together; None: whole rows.
    """
    theirs = make_quantised(case, path)
    (prompt,) = make_prompts((150,))
    exact = reference(theirs, prompt, NUM_TOKENS)
    round_inputs(theirs, case.ranks, case.plain if case.head else {*case.plain, "lm_head"}, group)
    tokens = [*prompt, *exact.greedy[:-1]]
    with torch.inference_mode():
        expected = theirs(torch.tensor([tokens])).logits[0]
    ours = PartitionedModel(path, case.partitions, case.ranks, quantization=quantization)
    logits = logits_of(ours, tokens, len(prompt))
    error, change = ((other - expected).square().mean().sqrt() for other in (logits, exact.logits))
    assert error < 0.2 * change
    wanted = request(path, tensor_parallel_size=case.ranks, quantization=quantization)
    assert load_partition(wanted, 0, lambda _: None).facts().quantization == served_as


@pytest.mark.parametrize(
    "name",
    one_short([name for name, case in CASES.items() if case.scheme.bits == 4], "gptq of gpt2, zero points, act-order"),
)
def test_activations_of_eight_bits_beside_any_weights_of_four(name, written):
    """The kernels are far closer to the reference than both are to the model without quantised activations.

    Short prompts: where an activation lies between two integers, the last bit of a float decides, on each processor
    differently, and all later tokens of the prompt differ. Most prompts have no such activation.
    """
    path, _ = written(name)
    case, prompts = CASES[name], make_prompts((5,) * 30)
    requests = [(row, 0, list(prompt)) for row, prompt in enumerate(prompts)]
    plain = [ReferenceKernels()] * case.partitions
    models = (
        PartitionedModel(path, case.partitions, case.ranks, quantization="w4a8"),
        PartitionedModel(path, case.partitions, case.ranks, quantization="w4a8", kernels=plain),
        PartitionedModel(path, case.partitions, case.ranks),
    )
    ours, expected, exact = (model.logits(model.iteration(requests, max_tokens=5)) for model in models)
    error, change = ((other - expected).square().mean().sqrt() for other in (ours, exact))
    assert error < 0.4 * change


@pytest.mark.parametrize(("name", "value"), [("weight", 8), ("weight", -9), ("weight_zero_point", 127)])
def test_bytes_of_more_than_four_bits_are_refused(name, value, written, tmp_path):
    """Files of int-quantized have a byte for each integer, whatever num_bits says."""
    path = shutil.copytree(written("int-quantized, groups with zero points")[0], tmp_path / "model")
    edit_config(path, with_four_bits)
    file = path / "model.safetensors"
    tensors = {key: each.clamp(-8, 7) if each.dtype == torch.int8 else each for key, each in load_file(file).items()}
    save_file(tensors, file)
    load_partition(request(path), 0, lambda _: None)
    tensors[f"model.layers.0.mlp.up_proj.{name}"][0, 0] = value
    save_file(tensors, file)
    with pytest.raises(ModelError, match=rf"up_proj: {name}: integers from -8 to 7 are expected, by num_bits 4"):
        load_partition(request(path), 0, lambda _: None)


def with_four_bits(config):
    (group,) = config["quantization_config"]["config_groups"].values()
    group["weights"]["num_bits"] = 4
    return config


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Return the folder and the dequantised model of a case, made when first asked for."""
    made = {}

    def of(name):
        if name not in made:
            path = tmp_path_factory.mktemp("quantised") / "model"
            made[name] = (path, make_quantised(CASES[name], path))
        return made[name]

    return of


@pytest.fixture
def copy(written, tmp_path):
    return lambda name: shutil.copytree(written(name)[0], tmp_path / "model")


def request(path, **fields) -> pb.LoadRequest:
    return pb.LoadRequest(
        **{"model_path": str(path), "pipeline_parallel_size": 1, "tensor_parallel_size": 1, "dtype": "float32",
           "device": "cpu", "workers_on_host": 1, **fields},
    )  # fmt: skip


def test_plain_torch_has_the_same_logits(written):
    """Targets without quantised products dequantise the integers."""
    path, theirs = written("gptq, act-order")
    (prompt,) = make_prompts((50,))
    expected = reference(theirs, prompt, 1)
    model = PartitionedModel(path, 1, kernels=[ReferenceKernels()])
    logits = model.logits(model.iteration([(0, 0, list(prompt))], max_tokens=64))
    torch.testing.assert_close(logits, expected.logits, atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", ["gptq, act-order", "awq, two ranks, groups of 64"])
def test_bfloat16_is_as_close_to_float32_as_transformers_is(name, written):
    path, theirs = written(name)
    (prompt,) = make_prompts((150,))
    exact = reference(theirs, prompt, 1).logits
    model = PartitionedModel(path, 1, CASES[name].ranks, dtype=torch.bfloat16)
    ours = model.logits(model.iteration([(0, 0, list(prompt))], max_tokens=176))
    with torch.inference_mode():
        rounded = deepcopy(theirs).to(torch.bfloat16)(torch.tensor([prompt])).logits[0].float()
    assert (ours - exact).square().mean().sqrt() <= 1.5 * (rounded - exact).square().mean().sqrt()


@pytest.mark.parametrize(
    ("name", "quantizations"),
    [
        ("gptq, two ranks", {"int4"}),
        ("gptq, eight bits", {"int8"}),
        ("awq", {"int4"}),
        ("pack-quantized", {"int4"}),
    ],
)
def test_four_bits_stay_four_bits_also_with_zero_points(name, quantizations, written):
    found = set()

    class Noting(ReferenceKernels):
        def quantized_linear(self, weight: QuantizedWeight, bias, dtype):
            found.add(weight.quantization)
            return super().quantized_linear(weight, bias, dtype)

    PartitionedModel(written(name)[0], 1, kernels=[Noting()])
    assert found == quantizations


@pytest.mark.parametrize("name", ["gptq, two ranks", "gptq of gpt2", "pack-quantized, zero points, two ranks, head"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_what_is_read_adds_up_to_the_partition_and_to_the_files(name, ranks, written):
    path, _ = written(name)
    total = 0
    for partition in range(2):
        read: list[int] = []
        wanted = request(path, partition=partition, pipeline_parallel_size=2, tensor_parallel_size=ranks)
        loaded = load_partition(wanted, ranks - 1, read.append)
        checked = check_model(path, 2, ranks, 0, range(partition, partition + 1))
        assert read == sorted(read)
        assert read[-1] == checked.num_bytes
        total += checked.num_bytes
        scheme = CASES[name].scheme
        method = "gptq" if scheme.kind == "gptq" else "compressed-tensors"
        assert loaded.facts().quantization == f"{method} int{scheme.bits}"
    headers = WeightHeaders(path)
    sizes = {each: tensor.numel() * tensor.itemsize for each, tensor in load_file(path / "model.safetensors").items()}
    assert set(sizes) == set(headers.file_of)
    tied = sum(size for each, size in sizes.items() if each.endswith(("wte.weight", "embed_tokens.weight")))
    assert total == sum(sizes.values()) + (0 if CASES[name].head else tied)


def test_plain_maps_stay_plain_with_the_quantization_of_the_checkpoint(written):
    path, _ = written("awq, whole rows, plain down_proj")
    assert check_model(path, 1, 2, 0, range(1), "int4").config.weight_format.bits == 4
    part = [(0, 0, list(range(1, 40)))]
    logits = []
    for quantization in ("none", "int4"):
        model = PartitionedModel(path, 1, quantization=quantization)
        logits.append(model.logits(model.iteration(part, max_tokens=64)))
    assert torch.equal(*logits)


def test_float16_is_warned_of(written, caplog):
    with caplog.at_level(logging.WARNING):
        load_partition(request(written("gptq, two ranks")[0], dtype="float16"), 0, lambda _: None)
    assert any(
        "gptq int4 weights are dequantised: no kernel multiplies them in float16" in line for line in caplog.messages
    )


def change_tensors(path, change):
    tensors = load_file(path / "model.safetensors")
    change(tensors)
    save_file(tensors, path / "model.safetensors")


QUERY = "model.layers.1.self_attn.q_proj"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda tensors: tensors.pop(f"{QUERY}.qzeros"), f"tensor {QUERY}.qzeros is missing"),
        (lambda tensors: tensors.pop(f"{QUERY}.qweight"), f"tensor {QUERY}.weight is missing"),
        (
            lambda tensors: tensors.update({f"{QUERY}.scales": torch.ones(2, 256)}),
            f"tensor {QUERY}.scales has shape [2, 256], [1, 256] is expected",
        ),
        (
            lambda tensors: tensors.update({f"{QUERY}.qweight": torch.ones(12, 256)}),
            f"tensor {QUERY}.qweight has dtype F32, not I32",
        ),
        (
            lambda tensors: tensors.update({f"{QUERY}.g_idx": torch.zeros(95, dtype=torch.int32)}),
            f"tensor {QUERY}.g_idx has shape [95], [96] is expected",
        ),
    ],
)
def test_tensors_that_do_not_fit_are_named_before_a_load(change, message, copy):
    path = copy("gptq, two ranks")
    change_tensors(path, change)
    for load in (lambda: check_model(path, 1, 1, 0, range(1)), lambda: PartitionedModel(path, 2)):
        with pytest.raises(ModelError, match=re.escape(message)):
            load()


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("g_idx", torch.full((96,), 7, dtype=torch.int32), f"map {QUERY}: g_idx: groups from 0 to 0 are expected"),
        ("scales", torch.full((1, 256), float("nan")), f"tensor {QUERY}.scales has values that are NaN or infinite"),
        ("qzeros", torch.full((1, 32), -1, dtype=torch.int32), f"map {QUERY}: qzeros: a zero point of 0 is ambiguous"),
    ],
)
def test_values_that_do_not_fit_are_named_by_a_load(name, value, message, copy):
    path = copy("gptq, two ranks")
    change_tensors(path, lambda tensors: tensors.update({f"{QUERY}.{name}": value}))
    check_model(path, 1, 1, 0, range(1))
    with pytest.raises(ModelError, match=re.escape(message)):
        PartitionedModel(path, 1)


def test_tensor_parallelism_that_cuts_groups(written):
    """Named before a load, with the sizes that fit."""
    path, _ = written("awq")
    message = (
        "map model.layers.0.mlp.down_proj: tensor-parallel-size 2 cuts the 200 inputs inside a group of 128: 1 would"
    )
    with pytest.raises(ModelError, match=message):
        check_model(path, 1, 2, 0, range(1))
    with pytest.raises(ModelError, match=r"map model\.layers\.0\.mlp\.down_proj: inputs 0 to 100 of 200 cut a group"):
        load_partition(request(path, tensor_parallel_size=2), 0, lambda _: None)
    path, _ = written("gptq of gpt2, zero points, act-order")
    with pytest.raises(ModelError, match=r"map transformer\.h\.0\.attn\.c_proj: tensor-parallel-size 2 cuts the 128"):
        check_model(path, 1, 2, 0, range(1))


def test_act_order_of_a_map_whose_inputs_are_divided(tmp_path):
    """Named by a load, because only the values of g_idx say it."""
    case = CASES["gptq, act-order"]
    path = tmp_path / "model"
    make_quantised(replace(case, options={**case.options, "intermediate_size": 256}), path)
    check_model(path, 1, 2, 0, range(1))
    with pytest.raises(ModelError, match=r"o_proj: g_idx: act-order spreads the groups over the ranks: set tensor-par"):
        load_partition(request(path, tensor_parallel_size=2), 0, lambda _: None)


def test_a_config_that_does_not_say_that_the_weights_are_quantised(copy):
    path = copy("gptq, two ranks")
    edit_config(path, lambda config: {name: value for name, value in config.items() if name != "quantization_config"})
    message = (
        r"config\.json: quantization_config is missing, but the weights have model\.layers\.0\.self_attn\.q_proj\.qw"
    )
    with pytest.raises(ModelError, match=message):
        check_model(path, 1, 1, 0, range(1))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--quantization", "int8"],
            "the weights are quantised already (gptq int4), which --quantization int8 contradicts",
        ),
        (
            ["--device", "cuda"],
            "the CUDA kernels lack products of quantised weights (gptq int4): use a CPU, or the unq",
        ),
    ],
)
def test_the_check_says_one_line_and_ends_with_2(options, message, written, monkeypatch, capsys):
    monkeypatch.setattr("resource.setrlimit", lambda *_: None)
    path, _ = written("gptq, two ranks")
    assert main([str(path), *options]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"{path / 'config.json'}: quantization_config: ")
    assert message in line
    assert main([str(path), "--quantization", "int4"]) == 0
    assert json.loads((path / "config.json").read_text())["quantization_config"]["bits"] == 4
