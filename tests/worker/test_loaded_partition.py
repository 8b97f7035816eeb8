"""`LoadedPartition`: what is read for a partition, and which partitions record their decode iterations."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from orca_kernels.cuda.attention_library import CheckedLibrary
from orca_kernels.cuda.flashinfer_attention import FlashInferSource
from orca_kernels.cuda.kernels import CudaKernels
from orca_kernels.cuda.torch_attention import TorchSource
from orca_kernels.interface import AttentionBackendError
from orca_kernels.reference import ReferenceKernels
from orca_protos import engine_pb2 as pb
from orca_protos.file_digest import tokenizer_digest
from orca_worker import loaded_partition
from orca_worker.errors import ModelError
from orca_worker.loaded_partition import load_partition
from orca_worker.model_check import check_model
from orca_worker.model_config import read_model_config
from orca_worker.model_identity import SOURCE_FILE, source_digest
from orca_worker.models.llama import LlamaPartition
from support.checkpoints import VARIANTS, make_model
from support.paged_flashinfer import FakeEvent, FakeFlashInfer
from support.paged_varlen import fake_flash_attention
from torch.nn.attention.varlen import varlen_attn_out


def request(path, **fields) -> pb.LoadRequest:
    return pb.LoadRequest(
        **{"model_path": str(path), "pipeline_parallel_size": 1, "tensor_parallel_size": 1, "dtype": "float32",
           "device": "cpu", "workers_on_host": 1, **fields},
    )  # fmt: skip


def test_increments_are_recorded_by_the_kernels_that_compute_them(checkpoint):
    partition = load_partition(request(checkpoint("llama-gqa-tied")), 0, lambda _: None)
    record, sizes = partition.recorder()
    assert record is partition.kernels.calls
    assert 1 in sizes


@pytest.mark.parametrize(
    ("variant", "fields"),
    [("gemma2-gqa-tied", {}), ("llama-gqa-tied", {"enforce_eager": True})],
    ids=["attention of the reference", "enforce_eager"],
)
def test_nothing_is_recorded(variant, fields, checkpoint):
    """The reference's attention reads lengths on the host: a replay would attend over the lengths of the recording."""
    assert load_partition(request(checkpoint(variant), **fields), 0, lambda _: None).recorder() is None


def test_the_facts_name_the_quantization(checkpoint):
    """So that a master detects a worker of an older version, which ignores it."""
    path = checkpoint("llama-gqa-tied")
    assert load_partition(request(path, quantization="int8"), 0, lambda _: None).facts().quantization == "int8"
    assert load_partition(request(path), 0, lambda _: None).facts().quantization == ""


def test_the_facts_name_a_model_without_a_head(checkpoint, tmp_path):
    make_model("llama-gqa-tied").base_model.save_pretrained(tmp_path)
    for path, embeds_only in ((tmp_path, True), (checkpoint("llama-gqa-tied"), False)):
        assert load_partition(request(path), 0, lambda _: None).facts().embeds_only == embeds_only


def test_the_search_for_greedy_tokens_takes_memory_only_where_it_is_used(checkpoint, tmp_path):
    """Gemma 2's cap makes some different logits equal, and a model that embeds samples no tokens."""

    def search(path: Path) -> object:
        model = load_partition(request(path), 0, lambda _: None).model
        assert isinstance(model, LlamaPartition)
        return model.head.likeliest

    make_model("llama-gqa-tied").base_model.save_pretrained(tmp_path)
    if search(checkpoint("llama-gqa-tied")) is None:
        pytest.skip("oneDNN computes the products of this processor")
    assert search(checkpoint("gemma2-gqa-tied")) is None
    assert search(tmp_path) is None


def test_the_facts_name_what_was_fetched(checkpoint, tmp_path):
    """So that a master detects partitions of different revisions. A new revision is another load."""
    path = shutil.copytree(checkpoint("llama-gqa-tied"), tmp_path / "model")
    read = load_partition(request(path), 0, lambda _: None).facts()
    assert read.source == ""
    (path / SOURCE_FILE).write_text("{}")
    fetched = load_partition(request(path), 0, lambda _: None).facts()
    assert fetched.source == source_digest(path) != ""
    assert fetched.digest != read.digest


def test_the_facts_name_the_tokenizer(checkpoint, tmp_path):
    """So that a master notices that its own is another one."""
    path = shutil.copytree(checkpoint("llama-gqa-tied"), tmp_path / "model")
    digests = []
    for content in ('{"a": 1}', '{"a": 2}', None):
        (path / "tokenizer.json").unlink(missing_ok=True)
        if content is not None:
            (path / "tokenizer.json").write_text(content)
        digests.append(load_partition(request(path), 0, lambda _: None).facts().tokenizer)
        assert digests[-1] == tokenizer_digest(path)
    assert len(set(digests)) == 3
    assert digests[-1] == ""


def test_the_facts_name_the_type_of_the_cache(checkpoint):
    """For the same reason."""
    path = checkpoint("llama-gqa-tied")
    loaded = load_partition(request(path, kv_cache_dtype="int8"), 0, lambda _: None)
    assert loaded.facts().kv_cache_dtype == "int8"
    assert loaded.recorder() is not None, "increments are recorded"
    assert load_partition(request(path), 0, lambda _: None).facts().kv_cache_dtype == ""


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_attention_of_a_gpu_is_chosen_with_the_heads_of_the_rank(ranks, checkpoint, monkeypatch):
    """And the facts name the choice, so that a master detects a worker of an older version, which ignores it."""
    choices = []

    def kernels_for(device, dtype, choice):
        choices.append(choice)
        return ReferenceKernels()

    monkeypatch.setattr(loaded_partition, "kernels_for", kernels_for)
    path = checkpoint("llama-gqa-tied")
    config = read_model_config(path)
    for backend in ("", "orca", "torch", "flashinfer"):
        wanted = request(path, attention_backend=backend, tensor_parallel_size=ranks)
        assert load_partition(wanted, ranks - 1, lambda _: None).facts().attention_backend == backend
    heads = (config.num_heads // ranks, config.num_kv_heads // ranks)
    assert choices == [(backend, *heads) for backend in ("auto", "orca", "torch", "flashinfer")]


def test_the_facts_name_the_attention_by_torch(checkpoint, monkeypatch):
    """As the master's start reports the kernels; layers without it would be named in a warning."""

    def kernels_for(device, dtype, choice):
        return CudaKernels(
            SimpleNamespace(), "CUDA sm_90", CheckedLibrary(TorchSource(lambda: varlen_attn_out), choice, device)
        )

    monkeypatch.setattr(loaded_partition, "kernels_for", kernels_for)
    monkeypatch.setattr(loaded_partition, "CudaGraphRecorder", object)
    with fake_flash_attention():
        loaded = load_partition(request(checkpoint("llama-gqa-tied"), dtype="bfloat16"), 0, lambda _: None)
    assert loaded.facts().kernels == "CUDA sm_90, attention by torch"
    assert replace(loaded, device=torch.device("cuda")).recorder() is not None
    assert not any(attention.is_reference for attention in loaded.model.attentions())


@pytest.mark.parametrize("variant", ["llama-gqa-tied", "gemma2-gqa-tied"])
def test_no_graph_contains_the_attention_by_flashinfer(variant, checkpoint, monkeypatch):
    """Its plan is made on the host for each batch. The facts name it, as they name torch's."""
    fake = FakeFlashInfer()

    def kernels_for(device, dtype, choice):
        source = FlashInferSource(device, lambda: fake, FakeEvent)
        return CudaKernels(SimpleNamespace(), "CUDA sm_80", CheckedLibrary(source, choice, device))

    monkeypatch.setattr(loaded_partition, "kernels_for", kernels_for)
    loaded = load_partition(request(checkpoint(variant), dtype="bfloat16"), 0, lambda _: None)
    assert loaded.facts().kernels == "CUDA sm_80, attention by flashinfer"
    assert not any(attention.is_reference for attention in loaded.model.attentions())
    assert replace(loaded, device=torch.device("cuda")).recorder() is None


class Refusing(ReferenceKernels):
    """Kernels of a GPU whose library is demanded and lacks an attention."""

    def attention(self, form, dtype):
        raise AttentionBackendError("FlashAttention-3 cannot be activated: ModuleNotFoundError")


@pytest.mark.parametrize("early", [True, False], ids=["of the GPU", "of the model"])
def test_an_attention_that_cannot_be_had_ends_the_load(early, checkpoint, monkeypatch):
    def kernels_for(device, dtype, choice):
        return Refusing().attention(None, dtype) if early else Refusing()

    monkeypatch.setattr(loaded_partition, "kernels_for", kernels_for)
    words = r"^--attention-backend torch: FlashAttention-3 cannot be activated: ModuleNotFoundError: use auto$"
    with pytest.raises(ModelError, match=words):
        load_partition(request(checkpoint("llama-gqa-tied"), attention_backend="torch"), 0, lambda _: None)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("ranks", [1, 2])
def test_what_is_read_adds_up_to_the_partition(variant, ranks, checkpoint):
    """Also where a rank reads parts of tensors only, or several parts of one."""
    path = checkpoint(variant)
    for partition in range(2):
        read: list[int] = []
        wanted = request(path, partition=partition, pipeline_parallel_size=2, tensor_parallel_size=ranks)
        facts = load_partition(wanted, ranks - 1, read.append).facts()
        assert read == sorted(read)
        assert read[-1] == check_model(path, 2, ranks, 0, range(partition, partition + 1)).num_bytes
        assert facts.family == variant.partition("-")[0]
        assert facts.kernels == "plain torch" or facts.kernels.startswith("C++ x86-64")
