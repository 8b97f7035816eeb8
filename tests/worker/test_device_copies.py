"""Copies to a device by one asynchronous copy from pinned memory, and no wait of the host in the path of an iteration.

A GPU is played by the device "meta" (support/host_waits.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from orca_kernels.cuda.attention_library import AttentionLibrary
from orca_kernels.cuda.flashinfer_attention import FlashInferAttention, Plans
from orca_kernels.cuda.kernels import CudaKernels
from orca_kernels.cuda.modules import Grid, Kernel
from orca_kernels.cuda.torch_attention import PagedBatches, TorchAttention
from orca_kernels.device_copies import to_device
from orca_kernels.interface import Attention, AttentionForm
from orca_protos import engine_pb2 as pb
from orca_protos.wire import PENDING_TOKEN
from orca_worker import device_copies, loaded_partition
from orca_worker.device_copies import HostCopies
from orca_worker.logit_processing import LogitProcessors
from orca_worker.logprobs import logprob_tensors
from orca_worker.rows import RowTable
from orca_worker.sampling import sample
from orca_worker.stage import Stage
from support.host_waits import HostWaits
from support.paged_flashinfer import FakeEvent, FakeFlashInfer
from torch.nn.attention.varlen import varlen_attn_out

GPU = torch.device("meta")
VOCABULARY = 50
ARRAYS = (
    np.arange(5),
    np.zeros(0, np.int64),
    np.array([1.5, -2.0, 3.25], np.float32),
    np.array([True, False, True]),
    np.arange(12).reshape(3, 4)[:, ::2],
    np.array([0.1]),
)


class Device:
    """Stands for a `torch.device` of a GPU; `copies` has what is copied to it."""

    type = "cuda"

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.copies: list[torch.Tensor] = []
        self.pinned: list[bool] = []
        empty = torch.empty

        def pinned_empty(size: int, dtype: torch.dtype, pin_memory: bool) -> torch.Tensor:
            self.pinned.append(pin_memory)
            return empty(size, dtype=dtype)

        def to(tensor: torch.Tensor, device: Device, non_blocking: bool) -> torch.Tensor:
            assert device is self
            assert non_blocking
            self.copies.append(tensor)
            return tensor.clone()

        monkeypatch.setattr(device_copies.torch, "empty", pinned_empty)
        monkeypatch.setattr(torch.Tensor, "to", to)


def test_arrays_of_all_types_are_copied_at_once_from_pinned_memory(monkeypatch):
    device = Device(monkeypatch)
    tensors = to_device(device, *ARRAYS)
    for tensor, array in zip(tensors, ARRAYS, strict=True):
        assert tensor.numpy().dtype == array.dtype
        assert np.array_equal(tensor.numpy(), array)
        assert tensor.is_contiguous()
    assert len(device.copies) == 1
    assert device.pinned == [True]


def test_on_the_cpu_nothing_is_copied():
    array = np.arange(5)
    (tensor,) = to_device(torch.device("cpu"), array)
    assert tensor.data_ptr() == array.ctypes.data
    assert HostCopies(torch.device("cpu")).start(tensor, tensor)() == [tensor, tensor]


SAMPLINGS = {
    "greedy": pb.Sampling(top_p=1),
    "temperature": pb.Sampling(temperature=0.9, top_p=1, seed=5),
    "penalties": pb.Sampling(top_p=1, presence_penalty=0.7, frequency_penalty=0.3, repetition_penalty=1.3),
    "bias and min_tokens": pb.Sampling(top_p=1, min_tokens=5, logit_bias=pb.LogitBias(token=[9], value=[2.0])),
    "logprobs": pb.Sampling(top_p=1, logprobs=3),
}
"""Not here: top_k, top_p and min_p, for which `sample` reads on the host whether it has searched enough tokens."""


def waits_of(sampling: pb.Sampling) -> list[str]:
    """Return the waits of a prompt, a chunk beside an increment, and increments whose tokens are not known yet."""
    rows, processors = RowTable(64, GPU), LogitProcessors(VOCABULARY, GPU)
    admission = pb.Admission(row=0, sampling=sampling, prompt_length=3, banned_token=[3, 8], computed_token=[4])
    other = pb.Admission(row=70, sampling=sampling, prompt_length=20)
    iterations = [
        pb.Iteration(
            row=[0], num_tokens=[3], context_length=[0], token=[1, 2, 3], num_new_blocks=[1], new_block=[0],
            sample=[True], admission=[admission],
        ),
        pb.Iteration(
            row=[0, 70], num_tokens=[1, 10], context_length=[3, 0], token=[5] * 11, num_new_blocks=[0, 1],
            new_block=[1], sample=[True, False], admission=[other],
        ),
        pb.Iteration(
            row=[0, 70], num_tokens=[1, 1], context_length=[4, 19], token=[PENDING_TOKEN] * 2, num_new_blocks=[0, 0],
            sample=[True, True],
        ),
    ]  # fmt: skip
    with torch.inference_mode(), HostWaits() as waits:
        for iteration in iterations:
            batch = rows.batch(iteration)
            processors.observe(iteration, batch.tokens)
            logits = torch.empty(len(batch.rows), VOCABULARY, device=GPU)
            tokens = sample(processors.apply(logits, iteration), batch.sampling)
            rows.keep_sampled(batch, tokens)
            assert (logprob_tensors(logits, tokens, batch.sampling) != []) == (sampling.logprobs > 0)
    return waits.found


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_the_host_never_waits_for_the_device_between_an_iteration_and_its_tokens(sampling):
    assert waits_of(SAMPLINGS[sampling]) == []


@pytest.mark.parametrize(
    ("work", "found"),
    [
        (lambda x: x.sum().item(), ["item"]),
        (lambda x: bool(x.all()), ["is_nonzero"]),
        (lambda x: x.nonzero(), ["nonzero"]),
        (lambda x: x[x > 0], ["index with a mask"]),
        (lambda x: x.cpu(), ["to"]),
        (lambda x: torch.zeros(3).copy_(x), ["copy_"]),
        (lambda x: torch.zeros(3).to(GPU), ["to"]),
        (lambda x: torch.from_numpy(np.zeros(3)).to(x.device), ["to"]),
        (lambda x: torch.tensor([1.0], device=GPU), ["tensor"]),
        (lambda x: torch.zeros(3).to(GPU, non_blocking=True), ["to"]),
        (lambda x: torch.zeros(3, dtype=torch.uint8).to(GPU, non_blocking=True), []),
        (lambda x: torch.zeros(3).to(torch.float64), []),
    ],
    ids=[
        "item",
        "bool",
        "nonzero",
        "mask",
        "cpu",
        "copy_",
        "to",
        "from_numpy",
        "tensor",
        "not pinned",
        "non_blocking",
        "same device",
    ],
)
def test_waits_are_found(work, found):
    with torch.inference_mode(), HostWaits() as waits:
        work(torch.zeros(3, device=GPU))
    assert waits.found == found


class NoLauncher:
    """Launches nothing: the tensors on the device have no data."""

    multiprocessors = 1

    def launch(self, kernel: Kernel, grid: Grid, threads: int, arguments: Sequence[Any]) -> None:
        pass


class Torch:
    """Has attention computed by torch's library, whose own functions for devices without data run."""

    def __init__(self) -> None:
        self._batches = PagedBatches()
        self.name = "torch"

    def attention(self, form: AttentionForm, dtype: torch.dtype) -> Attention:
        return TorchAttention(varlen_attn_out, self._batches, form)


class FlashInfer:
    """Has attention computed by FlashInfer, which support/paged_flashinfer.py plays without data."""

    def __init__(self) -> None:
        self._plans = Plans(FakeFlashInfer(), GPU, FakeEvent)
        self.name = "flashinfer"

    def attention(self, form: AttentionForm, dtype: torch.dtype) -> Attention:
        return FlashInferAttention(self._plans, form)


@pytest.mark.parametrize("name", ["llama-gqa-tied", "gpt2-head64-tied"])
@pytest.mark.parametrize("sampling", ["greedy", "penalties"])
def test_the_host_never_waits_for_the_device_in_a_whole_iteration(name, sampling, checkpoint, monkeypatch):
    """With the CUDA kernels' own Python: a prompt, then increments whose tokens the host does not know yet."""
    check_waits(checkpoint(name), SAMPLINGS[sampling], "float32", None, monkeypatch)


@pytest.mark.parametrize("name", ["llama-gqa-tied", "mistral-gqa"])
def test_nor_with_attention_by_torch(name, checkpoint, monkeypatch):
    check_waits(checkpoint(name), SAMPLINGS["greedy"], "bfloat16", Torch(), monkeypatch)


@pytest.mark.parametrize("name", ["llama-gqa-tied", "mistral-gqa"])
def test_nor_with_attention_by_flashinfer(name, checkpoint, monkeypatch):
    check_waits(checkpoint(name), SAMPLINGS["greedy"], "bfloat16", FlashInfer(), monkeypatch)


def check_waits(path: Path, sampling: pb.Sampling, dtype: str, library: AttentionLibrary | None, monkeypatch) -> None:
    """Run iterations on a GPU that the device "meta" plays, and assert that the host has not waited."""
    monkeypatch.setattr(loaded_partition, "rank_device", lambda *_: GPU)
    monkeypatch.setattr(loaded_partition, "kernels_for", lambda *_: CudaKernels(NoLauncher(), library=library))
    request = pb.LoadRequest(
        model_path=str(path), pipeline_parallel_size=1, tensor_parallel_size=1, dtype=dtype,
        device="cuda", workers_on_host=1, enforce_eager=True,
    )  # fmt: skip
    stage = Stage(request, 0, lambda _: None)
    stage.prepare(1)
    stage.allocate(4)
    admission = pb.Admission(row=0, sampling=sampling, prompt_length=3)
    iterations = [
        pb.Iteration(
            row=[0], num_tokens=[3], context_length=[0], token=[1, 2, 3], num_new_blocks=[1], new_block=[0],
            sample=[True], admission=[admission],
        ),
        *(
            pb.Iteration(
                row=[0], num_tokens=[1], context_length=[place], token=[PENDING_TOKEN], num_new_blocks=[0],
                sample=[True],
            )
            for place in (3, 4)
        ),
        pb.Iteration(
            row=[0, 1], num_tokens=[1, 9], context_length=[5, 0], token=[PENDING_TOKEN, *range(9)],
            num_new_blocks=[0, 1], new_block=[1], sample=[True, True],
            admission=[pb.Admission(row=1, sampling=sampling, prompt_length=9)],
            prompt=[pb.PromptPositions(index=1, token=range(1, 9), num_likeliest=2)],
        ),
    ]  # fmt: skip
    with HostWaits() as waits:
        for iteration in iterations:
            stage.execute(iteration)
    assert waits.found == []
