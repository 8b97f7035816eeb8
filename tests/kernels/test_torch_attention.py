"""`TorchAttention` over torch's `varlen_attn_out`; support/paged_varlen.py plays FlashAttention-3 below it."""

from __future__ import annotations

import gc
import inspect
import sys
import weakref
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from orca_kernels.cuda import torch_attention
from orca_kernels.cuda.torch_attention import PagedBatches, TorchAttention, check_form, load_varlen
from orca_kernels.interface import AttentionBackendError, AttentionForm
from support.host_waits import HostWaits
from support.paged_attention import CPU, GPU, HEADS, PARTS, check_layout, compare, on_gpu
from support.paged_varlen import fake_flash_attention
from support.ragged import ragged
from torch.nn.attention.varlen import varlen_attn_out


@pytest.fixture
def calls() -> Iterator[list[dict[str, object]]]:
    with fake_flash_attention() as seen, torch.inference_mode():
        yield seen


def attention(form: AttentionForm) -> TorchAttention:
    return TorchAttention(varlen_attn_out, PagedBatches(), form)


@settings(max_examples=settings.default.max_examples * 3 // 10, deadline=None)
@given(
    parts=PARTS,
    heads=HEADS,
    head_dim=st.sampled_from([8, 64, 80]),
    window=st.sampled_from([None, 1, 7, 64]),
    dtype=st.sampled_from([torch.bfloat16, torch.float16]),
    seed=st.integers(0, 1000),
)
def test_any_mix_of_chunks_and_increments_is_that_of_the_reference(parts, heads, head_dim, window, dtype, seed):
    form = AttentionForm(head_dim, 0.3, window)
    with fake_flash_attention():
        compare(attention(form), parts, heads, form, dtype, seed)


def test_the_arguments_of_a_call(calls):
    form = AttentionForm(64, 0.125)
    compare(attention(form), [(37, 21), (90, 1), (0, 33)], (4, 2), form, torch.bfloat16, 0)
    form = replace(form, window=7)
    compare(attention(form), [(37, 1), (90, 1)], (4, 2), form, torch.bfloat16, 0)
    whole = {"max_q": 33, "max_k": 96, "window": (-1, 0), "is_causal": True, "num_splits": None}
    assert calls == [whole, {**whole, "max_q": 1, "window": (6, 0), "is_causal": False}]


def test_the_parameters_are_those_of_torch(calls):
    """Also that a call names every parameter by which the two functions of torch's module differ from ours."""
    signature = inspect.signature(varlen_attn_out)
    bound = []

    def varlen(*arguments, **options):
        bound.append(signature.bind(*arguments, **options).arguments)
        return varlen_attn_out(*arguments, **options)

    batch = ragged([5], [2], 3, torch.Generator().manual_seed(0))
    attend = TorchAttention(varlen, PagedBatches(), AttentionForm(64, 0.125))
    pools = attend.new_pools(3, 1, torch.bfloat16, CPU)
    attend(torch.zeros(2, 4, 64, dtype=torch.bfloat16), pools, batch)
    (arguments,) = bound
    assert set(arguments) == set(signature.parameters) - {"return_aux"}
    assert arguments["cu_seq_k"] is None
    assert arguments["enable_gqa"]
    assert torch.equal(arguments["cu_seq_q"], torch.tensor([0, 2], dtype=torch.int32))
    assert torch.equal(arguments["seqused_k"], torch.tensor([7], dtype=torch.int32))


def test_the_layout_of_the_pools():
    check_layout(attention(AttentionForm(64, 0.125)))


def test_the_layers_of_a_run_share_the_numbers_of_a_batch(calls):
    """Of the batch of a decode graph the first layer computes them anew in every run: contexts change."""
    batch = ragged([5, 20], [1, 1], 4, torch.Generator().manual_seed(0))
    batches = PagedBatches()
    first, second = object(), object()
    numbers = batches.of(batch, first)
    assert numbers.table is batch.block_table
    assert batches.of(batch, second) is numbers
    batch.context_length.add_(1)
    batches.of(batch, second)
    assert numbers.lengths.tolist() == [6, 21]
    assert batches.of(batch, first) is numbers
    assert numbers.lengths.tolist() == [7, 22]
    kept = weakref.ref(numbers.lengths)
    del numbers, batch
    gc.collect()
    assert kept() is None, "they end with the batch"


@pytest.mark.parametrize("contexts_on", [CPU, GPU])
def test_torch_accepts_the_arguments_on_a_device_and_the_host_never_waits(contexts_on):
    """By torch's own function for devices without data, which stand for a GPU."""
    batch = on_gpu(ragged([37, 90], [21, 1], 12, torch.Generator().manual_seed(0)))
    batch = replace(batch, context_length=batch.context_length.to(contexts_on))
    attend = attention(AttentionForm(64, 0.125, window=30))
    pools = attend.new_pools(12, 2, torch.bfloat16, GPU)
    rows = torch.empty(22, 8, 64, dtype=torch.bfloat16, device=GPU)
    query, key, value = rows.split([4, 2, 2], dim=1)
    with torch.inference_mode(), HostWaits() as waits:
        for _ in range(2):
            attend.store(key, value, pools, batch.slots)
            output = attend(query, pools, batch)
    assert output.shape == (22, 4, 64)
    assert (output.dtype, output.device) == (torch.bfloat16, GPU)
    assert waits.found == []


def test_one_copy_to_the_device_per_iteration(monkeypatch):
    batch, copies, to = on_gpu(ragged([37, 90], [21, 1], 12, torch.Generator().manual_seed(0))), [], torch.Tensor.to

    def counted(tensor, *arguments, **options):
        if tensor.device == CPU and GPU in arguments:
            copies.append(tensor.view(torch.int32).tolist())
        return to(tensor, *arguments, **options)

    monkeypatch.setattr(torch.Tensor, "to", counted)
    batches = PagedBatches()
    for _ in range(3):
        batches.of(batch, "first layer")
        batches.of(batch, "second layer")
    (numbers,) = copies
    assert numbers[:3] + numbers[4:] == [0, 21, 22, 21, 1, 58, 91], "starts, tokens, lengths at multiples of 8 bytes"


@pytest.mark.parametrize(
    ("form", "dtype", "reason"),
    [
        (AttentionForm(64, 0.1), torch.float32, "FlashAttention-3 computes bfloat16 and float16, not float32"),
        (AttentionForm(64, 0.1, softcap=50.0), torch.bfloat16, "torch's varlen_attn lacks softcap"),
        (AttentionForm(64, 0.1, kv_cache_dtype="int8"), torch.bfloat16, "torch's varlen_attn lacks kv_cache_dtype"),
        (AttentionForm(60, 0.1), torch.bfloat16, "needs a head dimension that is a multiple of 8 up to 256, not 60"),
        (AttentionForm(264, 0.1), torch.float16, "needs a head dimension that is a multiple of 8 up to 256, not 264"),
    ],
    ids=str,
)
def test_forms_that_the_library_lacks(form, dtype, reason):
    with pytest.raises(AttentionBackendError, match=reason):
        check_form(form, dtype)
    check_form(AttentionForm(64, 0.1, window=7), torch.bfloat16)


def test_the_library_needs_flash_attention_3():
    """Its package is not installed with ORCA; torch's other functions keep their attention."""
    with pytest.raises(
        AttentionBackendError, match=r"^FlashAttention-3 cannot be activated: ModuleNotFoundError: No mo"
    ):
        load_varlen()
    torch_attention.unload_varlen()
    assert torch.nn.attention.current_flash_attention_impl() is None


@pytest.mark.parametrize("missing", ["torch.nn.attention", "torch.nn.attention.varlen"])
def test_an_older_torch_has_no_such_attention(missing, monkeypatch):
    active = ["FA3"]
    monkeypatch.setattr(torch.nn.attention, "activate_flash_attention_impl", lambda _: None)
    monkeypatch.setattr(torch.nn.attention, "current_flash_attention_impl", lambda: active[0])
    monkeypatch.setattr(torch.nn.attention, "restore_flash_attention_impl", active.clear)
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(AttentionBackendError, match=r"^torch 2\.\S+ has no varlen_attn over pages, 2\.13 has: "):
        load_varlen()
    assert active == (["FA3"] if missing == "torch.nn.attention" else []), "released if it had been activated"


def test_flash_attention_3_is_activated_and_released(monkeypatch):
    active: list[str] = []
    monkeypatch.setattr(torch.nn.attention, "activate_flash_attention_impl", active.append)
    monkeypatch.setattr(torch.nn.attention, "current_flash_attention_impl", lambda: active[0])
    monkeypatch.setattr(torch.nn.attention, "restore_flash_attention_impl", active.clear)
    assert load_varlen() is varlen_attn_out
    assert active == ["FA3"]
    torch_attention.unload_varlen()
    assert active == []
    assert "FA3" in torch.nn.attention.list_flash_attention_impls()
