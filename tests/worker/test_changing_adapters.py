"""Adapters that come and go on one rank: the same tokens as those of the start, and nothing changes for others."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from orca_protos import engine_pb2 as pb
from orca_worker import changing_adapters
from orca_worker.adapter_files import Adapter
from orca_worker.errors import ModelError
from orca_worker.memory import FreeMemory
from orca_worker.runtime_adapters import checked_digest
from orca_worker.stage import Stage
from support.checkpoints import make_model, make_prompts, reference
from support.lora import ALL, GPT2, fill_with_nan, make_adapter

(PROMPT,) = make_prompts((20,))
BLOCKS = 3
NUM_TOKENS = 8


def load_request(model: Path, runtime_adapters: str = "", **fields) -> pb.LoadRequest:
    return pb.LoadRequest(
        model_path=str(model), pipeline_parallel_size=1, tensor_parallel_size=1, dtype="float32", device="cpu",
        workers_on_host=1, runtime_adapters=runtime_adapters, **fields,
    )  # fmt: skip


def formed(request: pb.LoadRequest) -> Stage:
    stage = Stage(request, 0, lambda _: None)
    stage.prepare(1)
    stage.allocate(2 * BLOCKS)
    return stage


def generate(stage: Stage, *adapters: int) -> list[list[int]]:
    """Return the greedy tokens of PROMPT with each of the adapters, in the same iterations."""
    rows = range(len(adapters))
    tokens: list[list[int]] = [[] for _ in rows]
    inputs, context = [list(PROMPT) for _ in rows], 0
    for sequence in range(NUM_TOKENS):
        begins = not context
        iteration = pb.Iteration(
            epoch=1, sequence=sequence, row=rows, num_tokens=map(len, inputs), context_length=[context] * len(rows),
            token=[token for each in inputs for token in each],
            num_new_blocks=[BLOCKS * begins] * len(rows), new_block=range(BLOCKS * len(rows) * begins),
            sample=[True] * len(rows),
            admission=[
                pb.Admission(row=row, adapter=adapters[row], prompt_length=len(PROMPT), sampling=pb.Sampling())
                for row in rows if begins
            ],
        )  # fmt: skip
        sampled = stage.execute(iteration)().result.token
        context += len(inputs[0])
        inputs = [[token] for token in sampled]
        for row, token in enumerate(sampled):
            tokens[row].append(token)
    return tokens


def change(kept: tuple[int, ...] = (), number: int = 0, path: Path | str = "") -> pb.ChangeAdaptersRequest:
    loaded = pb.RuntimeAdapter(number=number, name=str(number), path=str(path)) if number else None
    return pb.ChangeAdaptersRequest(epoch=1, kept=kept, loaded=loaded)


@pytest.mark.parametrize(("variant", "targets"), [("llama-gqa-tied", ALL), ("gpt2-head64-tied", GPT2)])
def test_adapters_come_and_go(variant, targets, checkpoint, tmp_path):
    """Beside one of the start; a number that stays keeps its adapter, one that leaves changes nothing any more."""
    path = checkpoint(variant)
    merged = {number: make_adapter(tmp_path / str(number), variant, number, 4, targets) for number in (1, 2, 3)}
    expected = {number: reference(model, PROMPT, NUM_TOKENS).greedy for number, model in merged.items()}
    expected[0] = reference(make_model(variant), PROMPT, NUM_TOKENS).greedy
    first = pb.Adapter(name="1", path=str(tmp_path / "1"))
    stage = formed(load_request(path, str(tmp_path), adapter=[first]))
    assert generate(stage, 0, 1) == [expected[0], expected[1]]
    stage.adapters.change(change((), 2, tmp_path / "2"))
    stage.adapters.change(change((2,), 3, "3"))
    assert generate(stage, 2, 3) == [expected[2], expected[3]]
    stage.adapters.change(change((3,)))
    assert generate(stage, 3, 2) == [expected[3], expected[0]]
    stage.adapters.change(change((3,), 4, tmp_path / "2"))
    assert generate(stage, 4, 1) == [expected[2], expected[1]]
    stage.prepare(1)  # another epoch keeps them
    assert generate(stage, 3, 4) == [expected[3], expected[2]]
    stage.adapters.change(change())
    assert generate(stage, 0, 1) == [expected[0], expected[1]]


def test_a_number_of_an_earlier_master_is_loaded_anew_unless_it_is_the_same(checkpoint, tmp_path, monkeypatch):
    variant = "llama-gqa-tied"
    reads: list[str] = []
    for number in (1, 2):
        make_adapter(tmp_path / str(number), variant, number, 4, ALL)
    stage = formed(load_request(checkpoint(variant), str(tmp_path)))
    read = changing_adapters.read_runtime_adapter

    def noted(adapter: pb.RuntimeAdapter, request: pb.LoadRequest) -> Adapter:
        reads.append(adapter.path)
        return read(adapter, request)

    monkeypatch.setattr(changing_adapters, "read_runtime_adapter", noted)
    stage.adapters.change(change((), 1, "1"))
    own = generate(stage, 1)
    stage.adapters.change(change((1,), 1, "1"))
    assert reads == ["1"]
    stage.adapters.change(change((1,), 1, "2"))
    assert reads == ["1", "2"]
    assert generate(stage, 1) != own


def test_a_refused_adapter_changes_nothing(checkpoint, tmp_path, monkeypatch):
    variant = "llama-gqa-tied"
    make_adapter(tmp_path / "1", variant, 1, 4, ALL)
    make_adapter(tmp_path / "huge", variant, 2, 4, ALL, lora_alpha=1e39)
    stage = formed(load_request(checkpoint(variant), str(tmp_path)))
    stage.adapters.change(change((), 1, "1"))
    before = generate(stage, 0, 1)
    for path in ("none", "huge"):
        with pytest.raises(ModelError):
            stage.adapters.change(change((1,), 2, path))
        assert generate(stage, 2, 1) == before
    monkeypatch.setattr(changing_adapters, "free_memory", lambda _: FreeMemory(1 << 10, "of the test", 1 << 10))
    with pytest.raises(ModelError, match=r"the adapter may need .* MiB are free"):
        stage.adapters.change(change((1,), 2, "1"))
    assert generate(stage, 2, 1) == before


def test_no_refusal_of_a_rank_shows_the_path_of_the_folder(checkpoint, tmp_path):
    """Values are read by the ranks only: the controller has checked the header."""
    variant = "llama-gqa-tied"
    make_adapter(tmp_path / "nan", variant, 2, 4, ALL)
    fill_with_nan(tmp_path / "nan")
    stage = formed(load_request(checkpoint(variant), str(tmp_path)))
    with pytest.raises(ModelError, match=r"^nan: tensor .* has values that are NaN or infinite$"):
        stage.adapters.change(change((), 2, "nan"))


def test_memory_returns_when_an_adapter_leaves(checkpoint, tmp_path, monkeypatch):
    variant = "llama-gqa-tied"
    make_adapter(tmp_path / "1", variant, 1, 4, ALL)
    stage = formed(load_request(checkpoint(variant), str(tmp_path)))
    stage.adapters.change(change((), 1, "1"))
    returned: list[str] = []
    monkeypatch.setattr(changing_adapters, "return_freed_memory", lambda: returned.append("heap"))
    stage.adapters.change(change(()))
    assert returned == ["heap"]


@pytest.mark.parametrize(
    "error",
    [torch.OutOfMemoryError("CUDA"), MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory")],
    ids=["a GPU", "Python", "torch on the host"],
)
def test_memory_that_runs_out_during_a_read_refuses_the_adapter(checkpoint, tmp_path, monkeypatch, error):
    variant = "llama-gqa-tied"
    make_adapter(tmp_path / "1", variant, 1, 4, ALL)
    stage = formed(load_request(checkpoint(variant), str(tmp_path)))
    before = generate(stage, 0)
    returned: list[str] = []
    monkeypatch.setattr(changing_adapters, "return_freed_memory", lambda: returned.append("heap"))

    def exhausted(*_: object) -> None:
        returned.clear()  # of the return before free memory is measured
        raise error

    with monkeypatch.context() as patch:
        patch.setattr("orca_worker.adapters._factors", exhausted)
        with pytest.raises(ModelError, match=r"memory does not hold .* unload others"):
            stage.adapters.change(change((), 1, "1"))
    assert returned == ["heap"]
    assert generate(stage, 1) == before
    stage.adapters.change(change((), 1, "1"))
    assert generate(stage, 1) != before


def test_files_that_are_replaced_before_the_rank_reads_them_are_refused(checkpoint, tmp_path):
    variant = "llama-gqa-tied"
    for number in (1, 2):
        make_adapter(tmp_path / str(number), variant, number, 4, ALL)
    request = load_request(checkpoint(variant), str(tmp_path))
    stage = formed(request)
    before = generate(stage, 0)
    asked = change((), 1, "1")
    asked.loaded.digest = checked_digest(asked.loaded, request)
    shutil.copytree(tmp_path / "2", tmp_path / "1", dirs_exist_ok=True)
    with pytest.raises(ModelError, match=r"^1: the files have changed"):
        stage.adapters.change(asked)
    assert generate(stage, 1) == before
    asked.loaded.digest = checked_digest(change((), 1, "1").loaded, request)
    stage.adapters.change(asked)
    assert generate(stage, 1) != before


def test_without_the_option_no_map_is_adapted(checkpoint, tmp_path):
    path = checkpoint("llama-gqa-tied")
    plain, changing = formed(load_request(path)), formed(load_request(path, str(tmp_path)))
    assert not plain._model.adapted_maps._adapted
    assert changing._model.adapted_maps._adapted
    assert generate(plain, 0, 0) == generate(changing, 0, 0)
