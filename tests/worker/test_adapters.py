"""Adapters on a rank: which rows use which, and adapted maps against weights into which an adapter is merged."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from orca_kernels.cpu.kernels import CpuKernels
from orca_kernels.cpu.library import load
from orca_kernels.interface import Kernels
from orca_kernels.reference import ReferenceKernels
from orca_protos import engine_pb2 as pb
from orca_worker.adapter_files import Adapter, linear_maps, read_adapter, read_adapters
from orca_worker.adapters import Adapters, IterationAdapters, iteration_adapters
from orca_worker.errors import ModelError
from orca_worker.model_config import load_digest, read_model_config
from orca_worker.rows import RowTable
from orca_worker.stage import Stage
from safetensors.torch import load_file, save_file
from support.lora import ALL, GPT2, make_adapter
from torch.nn import functional

CPU = torch.device("cpu")
MAPS = {"a.q": (24, 40), "a.k": (8, 40), "a.v": (8, 40), "out": (40, 24)}


@given(st.lists(st.integers(0, 3), min_size=1, max_size=20), st.data())
def test_the_rows_of_each_adapter_among_all_tokens_and_among_those_that_are_read(adapter, data):
    count = len(adapter)
    some = st.lists(st.integers(0, count - 1), min_size=1, max_size=count, unique=True)
    last = data.draw(st.none() | some.map(sorted))
    found = iteration_adapters(np.array(adapter), None if last is None else np.array(last), CPU)
    if not any(adapter):
        assert found is None
        return
    assert found is not None
    read = adapter if last is None else [adapter[token] for token in last]
    for of, part in ((adapter, found.of_tokens), (read, found.of_last)):
        assert part.adapters.tolist() == of
        rows = {number: rows.tolist() for number, rows in part.groups}
        assert rows == {number: [place for place, own in enumerate(of) if own == number] for number in set(of) - {0}}


def test_a_row_keeps_its_adapter_until_another_request_takes_it():
    table = RowTable(64, CPU)

    def batch(rows: list[int], admissions: list[pb.Admission], num_tokens: list[int]):
        count = len(rows)
        return table.batch(
            pb.Iteration(
                row=rows, num_tokens=num_tokens, context_length=[0] * count, token=range(sum(num_tokens)),
                num_new_blocks=[0] * count, sample=[True] * count, admission=admissions,
            )
        ).adapters  # fmt: skip

    first = batch([0, 1], [pb.Admission(row=0, adapter=2), pb.Admission(row=1)], [2, 1])
    assert first is not None
    assert [(number, rows.tolist()) for number, rows in first.of_tokens.groups] == [(2, [0, 1])]
    assert [(number, rows.tolist()) for number, rows in first.of_last.groups] == [(2, [0])]
    again = batch([1, 0], [], [1, 1])
    assert again is not None
    assert [(number, rows.tolist()) for number, rows in again.of_tokens.groups] == [(2, [1])]
    assert batch([0], [pb.Admission(row=0)], [1]) is None


def write(folder: Path, modules: tuple[str, ...], rank: int, seed: int) -> tuple[Adapter, dict[str, torch.Tensor]]:
    """Write an adapter of some of MAPS; return it as it is read, and the products that it adds."""
    generator, tensors, products = torch.Generator().manual_seed(seed), {}, {}
    for module in modules:
        outputs, inputs = MAPS[module]
        down, up = torch.randn(rank, inputs, generator=generator), torch.randn(outputs, rank, generator=generator)
        tensors |= {f"base_model.model.{module}.lora_A.weight": down, f"base_model.model.{module}.lora_B.weight": up}
        products[module] = 3 / rank * up @ down
    folder.mkdir()
    save_file(tensors, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": rank, "lora_alpha": 3}))
    return read_adapter(folder, MAPS), products


@pytest.fixture(params=["reference", "cpu"])
def kernels(request) -> Kernels:
    return ReferenceKernels() if request.param == "reference" else CpuKernels(load(), torch.float32)


@pytest.mark.parametrize("ranks", [1, 2])
def test_adapted_maps_equal_merged_ones(kernels, tmp_path, ranks):
    """Three maps of one input as one, two of them adapted, and a map that is split by inputs; in parts of ranks."""
    adapters, products = zip(
        write(tmp_path / "1", ("a.q", "a.v"), 4, 1), write(tmp_path / "2", ("a.k", "out"), 2, 2), strict=True
    )
    generator = torch.Generator().manual_seed(3)
    weights = {name: torch.randn(shape, generator=generator) for name, shape in MAPS.items()}
    rows = iteration_adapters(np.array([0, 1, 2, 1, 0, 2]), None, CPU)
    x, heads = torch.randn(6, 40, generator=generator), torch.randn(6, 24, generator=generator)
    residual = torch.randn(6, 40, generator=generator)

    def expected(name: str, row: int) -> torch.Tensor:
        number = [0, 1, 2, 1, 0, 2][row]
        return weights[name] + (products[number - 1].get(name, 0) if number else 0)

    summed = torch.zeros(6, 40)
    for rank in range(ranks):
        made = Adapters(adapters, kernels, torch.float32, CPU)
        made.active.select(rows)
        parts = {name: slice(size * rank // ranks, size * (rank + 1) // ranks) for name, (size, _) in MAPS.items()}
        names = ("a.q", "a.k", "a.v")
        base = kernels.linear(torch.cat([weights[name][parts[name]] for name in names]), None)
        joined = made.adapt(base, [(name, MAPS[name][0], parts[name]) for name in names], 40, slice(0, 40))
        wanted = torch.stack(
            [torch.cat([expected(name, row)[parts[name]] for name in names]) @ x[row] for row in range(6)]
        )
        torch.testing.assert_close(joined(x), wanted)
        torch.testing.assert_close(joined.gelu_tanh(x), functional.gelu(wanted, approximate="tanh"))
        share = slice(24 * rank // ranks, 24 * (rank + 1) // ranks)
        base = kernels.linear(weights["out"][:, share].contiguous(), None)
        out = made.adapt(base, [("out", 40, slice(0, 40))], 24, share)
        own = residual if rank == 0 else torch.zeros(6, 40)
        summed += out.add(heads[:, share].contiguous(), own.clone())
    wanted = torch.stack([expected("out", row) @ heads[row] for row in range(6)]) + residual
    torch.testing.assert_close(summed, wanted)


def test_rows_without_an_adapter_keep_their_bits(tmp_path):
    """Those of the map itself, whatever other rows use, and with no adapter in the iteration."""
    kernels = CpuKernels(load(), torch.float32)
    adapter, _ = write(tmp_path / "1", ("a.q",), 4, 1)
    weight, x = torch.randn(24, 40), torch.randn(5, 40)
    base, made = kernels.linear(weight.clone(), None), Adapters([adapter], kernels, torch.float32, CPU)
    adapted = made.adapt(base, [("a.q", 24, slice(0, 24))], 40, slice(0, 40))
    for numbers in ([0, 1, 0, 1, 0], [0] * 5):
        made.active.select(iteration_adapters(np.array(numbers), None, CPU))
        plain = [place for place, number in enumerate(numbers) if number == 0]
        for operation in ("__call__", "gelu_tanh"):
            found, own = getattr(adapted, operation)(x), getattr(base, operation)(x)
            assert torch.equal(found[plain], own[plain])
            assert torch.equal(found, own) is (1 not in numbers)


def test_a_map_that_no_adapter_changes_stays_as_it_is(tmp_path):
    kernels = ReferenceKernels()
    adapter, _ = write(tmp_path / "1", ("a.q",), 4, 1)
    base, made = kernels.linear(torch.randn(40, 24), None), Adapters([adapter], kernels, torch.float32, CPU)
    assert made.adapt(base, [("out", 40, slice(0, 40))], 24, slice(0, 24)) is base


@pytest.mark.parametrize(
    ("variant", "targets"), [("llama-gqa-tied", ALL), ("gpt2-head64-tied", GPT2), ("qwen3-unprefixed-tied", ALL)]
)
def test_the_linear_maps_of_a_model_are_those_of_its_layers(variant, targets, checkpoint, tmp_path):
    path = checkpoint(variant)
    stored = load_file(path / "model.safetensors")
    maps = linear_maps(read_model_config(path), stored)
    assert {name.rpartition(".")[2] for name in maps} == set(targets)
    make_adapter(tmp_path / "x", variant, 0, 4, targets)
    assert set(read_adapter(tmp_path / "x", maps).tensors) == set(maps)


@pytest.mark.parametrize("module", ["transformer.h.0.c_fc", "model.layers.0.up_proj"])
def test_weights_of_checkpoints_without_a_prefix_have_shorter_names(module, tmp_path):
    """The first ones of GPT-2, and those of models without a head; PEFT names modules of the model with a head."""
    own = module.partition(".")[2]
    (tmp_path / "x").mkdir()
    tensors = {"lora_A": torch.ones(1, 2), "lora_B": torch.ones(3, 1)}
    save_file(
        {f"base_model.model.{module}.{name}.weight": value for name, value in tensors.items()},
        tmp_path / "x" / "adapter_model.safetensors",
    )
    (tmp_path / "x" / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 1, "lora_alpha": 1}))
    adapter = read_adapter(tmp_path / "x", {own: (3, 2)})
    assert adapter.tensors == {own: f"base_model.model.{module}"}


WRONG = ("lm_head.lora_A", "base_model.model.a.q.lora_C", "base_model.model.b.lora_A", "a.q.lora_A")


@pytest.mark.parametrize("name", WRONG)
def test_a_tensor_of_another_model_is_refused(tmp_path, name):
    write(tmp_path / "x", ("a.q",), 4, 1)
    tensors = load_file(tmp_path / "x" / "adapter_model.safetensors")
    save_file({**tensors, f"{name}.weight": torch.ones(4, 40)}, tmp_path / "x" / "adapter_model.safetensors")
    with pytest.raises(ModelError, match="belongs to no linear map"):
        read_adapter(tmp_path / "x", MAPS)


def test_half_a_pair_an_empty_file_and_pickles_are_refused(tmp_path):
    write(tmp_path / "x", ("a.q",), 4, 1)
    path = tmp_path / "x" / "adapter_model.safetensors"
    tensors = load_file(path)
    save_file({name: value for name, value in tensors.items() if "lora_A" in name}, path)
    with pytest.raises(ModelError, match=r"lora_B\.weight is missing"):
        read_adapter(tmp_path / "x", MAPS)
    save_file({}, path)
    with pytest.raises(ModelError, match="no weights of a linear map"):
        read_adapter(tmp_path / "x", MAPS)
    path.rename(path.with_suffix(".bin"))
    with pytest.raises(ModelError, match="pickled weights are not supported"):
        read_adapter(tmp_path / "x", MAPS)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("init_lora_weights", "pissa_niter_4"),
        ("init_lora_weights", "olora"),
        ("alora_invocation_tokens", [7]),
        ("use_dora", True),
        ("target_parameters", ["experts"]),
    ],
)
def test_what_is_no_plain_product_is_refused_by_its_field(tmp_path, field, value):
    write(tmp_path / "x", ("a.q",), 4, 1)
    path = tmp_path / "x" / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), field: value}))
    with pytest.raises(ModelError, match=f"adapter_config.json: {field}"):
        read_adapter(tmp_path / "x", MAPS)


@pytest.mark.parametrize("value", [True, False, "gaussian", "orthogonal", None])
def test_how_the_factors_began_does_not_matter_otherwise(tmp_path, value):
    write(tmp_path / "x", ("a.q",), 4, 1)
    path = tmp_path / "x" / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "init_lora_weights": value}))
    assert read_adapter(tmp_path / "x", MAPS).rank == 4


def test_one_module_under_two_names_is_refused(tmp_path):
    (tmp_path / "x").mkdir()
    tensors = {
        f"base_model.model.{root}h.0.c_fc.{name}.weight": value
        for root in ("", "transformer.")
        for name, value in (("lora_A", torch.ones(1, 2)), ("lora_B", torch.ones(3, 1)))
    }
    save_file(tensors, tmp_path / "x" / "adapter_model.safetensors")
    (tmp_path / "x" / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 1, "lora_alpha": 1}))
    with pytest.raises(ModelError, match=r"'h\.0\.c_fc' occurs under two names"):
        read_adapter(tmp_path / "x", {"h.0.c_fc": (3, 2)})


def test_a_scale_beyond_the_dtype_is_refused(tmp_path):
    kernels = ReferenceKernels()
    write(tmp_path / "x", ("a.q",), 4, 1)
    path = tmp_path / "x" / "adapter_config.json"
    path.write_text(json.dumps({"peft_type": "LORA", "r": 4, "lora_alpha": 1e12}))
    made = Adapters([read_adapter(tmp_path / "x", MAPS)], kernels, torch.float16, CPU)
    with pytest.raises(ModelError, match=r"times lora_alpha exceed torch\.float16"):
        made.adapt(kernels.linear(torch.randn(24, 40), None), [("a.q", 24, slice(0, 24))], 40, slice(0, 40))


def test_a_new_epoch_begins_without_rows_of_the_last_one(checkpoint, tmp_path):
    """Recordings that are made before the first iteration would contain them."""
    path = checkpoint("llama-gqa-tied")
    make_adapter(tmp_path / "x", "llama-gqa-tied", 0, 4, ALL)
    load_request = pb.LoadRequest(
        model_path=str(path), pipeline_parallel_size=1, tensor_parallel_size=1, dtype="float32", device="cpu",
        workers_on_host=1, adapter=[pb.Adapter(name="x", path=str(tmp_path / "x"))],
    )  # fmt: skip
    stage = Stage(load_request, 0, lambda _: None)
    stage.prepare(1)
    stage.allocate(4)
    iteration = pb.Iteration(
        epoch=1, sequence=1, row=[0], num_tokens=[3], context_length=[0], token=[1, 2, 3], num_new_blocks=[1],
        new_block=[0], sample=[True], admission=[pb.Admission(row=0, adapter=1, prompt_length=3)],
    )  # fmt: skip
    stage.execute(iteration)()
    rows = stage._model.adapters
    assert rows.of(torch.zeros(3, 1))
    stage.prepare(2)
    assert rows.of(torch.zeros(3, 1)) is None


def test_a_partition_that_no_adapter_changes_replays_its_plain_recordings(checkpoint):
    """The adapters of its rows change other partitions. On a GPU others would be recorded while it serves."""
    load_request = pb.LoadRequest(
        model_path=str(checkpoint("llama-gqa-tied")), pipeline_parallel_size=1, tensor_parallel_size=1,
        dtype="float32", device="cpu", workers_on_host=1,
    )  # fmt: skip
    stage = Stage(load_request, 0, lambda _: None)
    stage.prepare(1)
    stage.allocate(4)
    assert not stage._model.adapted_maps.has_maps
    for sequence, adapter in enumerate((0, 1)):
        iteration = pb.Iteration(
            epoch=1, sequence=sequence, row=[sequence], num_tokens=[1], context_length=[0], token=[5],
            num_new_blocks=[1], new_block=[sequence], sample=[True],
            admission=[pb.Admission(row=sequence, adapter=adapter, prompt_length=1)],
        )  # fmt: skip
        stage.execute(iteration)()
    assert stage._layers._graphs is not None
    assert list(stage._layers._graphs._graphs) == [(1, False)]


@pytest.mark.parametrize("adapters", [[0, 1, 0, 2, 1], [1, 1, 2, 1, 1], [0, 2, 0, 2, 0]], ids=str)
def test_the_gelu_of_a_recording_is_that_of_the_iteration(adapters, tmp_path):
    """Bit for bit, also that of rows without an adapter."""
    kernels = CpuKernels(load(), torch.float32)
    adapter, _ = write(tmp_path / "1", ("a.q",), 4, 1)
    base, made = kernels.linear(torch.randn(24, 40), None), Adapters([adapter], kernels, torch.float32, CPU)
    adapted = made.adapt(base, [("a.q", 24, slice(0, 24))], 40, slice(0, 40))
    x, rows = torch.randn(5, 40), iteration_adapters(np.array(adapters), None, CPU)
    assert rows is not None
    found = []
    for groups in (rows.of_tokens.groups, None):
        part = rows.of_tokens._replace(groups=groups)
        made.active.select(IterationAdapters(part, part))
        found.append(adapted.gelu_tanh(x))
    assert torch.equal(*found)
    assert [torch.equal(*pair) for pair in zip(found[0], base.gelu_tanh(x), strict=True)] == [
        number != 1 for number in adapters
    ]


def test_a_changed_adapter_is_another_load_and_other_files_are_not_read(checkpoint, tmp_path):
    request = pb.LoadRequest(model_path=str(checkpoint("llama-gqa-tied")))
    plain = load_digest(request)
    write(tmp_path / "x", ("a.q",), 4, 1)
    (tmp_path / "x" / "adapter_old").symlink_to(tmp_path / "nowhere")
    request.adapter.add(name="x", path=str(tmp_path / "x"))
    first = load_digest(request)
    os.utime(tmp_path / "x" / "adapter_model.safetensors", (1, 1))
    assert len({plain, first, load_digest(request)}) == 3


def test_the_number_of_adapters_is_bounded(checkpoint):
    path = checkpoint("llama-gqa-tied")
    with pytest.raises(ModelError, match="65 adapters, at most 64"):
        read_adapters([pb.Adapter(name="x", path="x")] * 65, read_model_config(path), {})
