"""`FlashInferAttention` over FlashInfer's wrapper, which support/paged_flashinfer.py plays."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from orca_kernels.attention_self_test import self_test_attention
from orca_kernels.cuda.flashinfer_attention import (
    FlashInferAttention,
    Plans,
    Shape,
    page_lists,
)
from orca_kernels.interface import AttentionForm, RaggedBatch
from support.host_waits import HostWaits
from support.paged_attention import CPU, GPU, HEADS, PARTS, check_layout, compare, on_gpu
from support.paged_flashinfer import FakeEvent, FakeFlashInfer, FakeWrapper
from support.ragged import ragged

FORM = AttentionForm(64, 0.125)


def attention(form: AttentionForm, fake: FakeFlashInfer, device: torch.device = CPU) -> FlashInferAttention:
    return FlashInferAttention(Plans(fake, device, FakeEvent), form)


def some_batch() -> RaggedBatch:
    return ragged([37, 90], [21, 1], 12, torch.Generator().manual_seed(0))


@settings(max_examples=settings.default.max_examples * 3 // 10, deadline=None)
@given(
    parts=PARTS,
    heads=HEADS,
    window=st.sampled_from([None, 1, 7, 64]),
    softcap=st.sampled_from([None, 0.5, 50.0]),
    dtype=st.sampled_from([torch.bfloat16, torch.float16]),
    seed=st.integers(0, 1000),
)
def test_any_mix_of_chunks_and_increments_is_that_of_the_reference(parts, heads, window, softcap, dtype, seed):
    form = AttentionForm(64, 0.3, window, softcap)
    compare(attention(form, FakeFlashInfer()), parts, heads, form, dtype, seed)


def test_the_numbers_of_a_batch():
    """Three pages of each request's table belong to it; the places after them have other blocks' numbers."""
    batch = RaggedBatch(
        torch.tensor([0, 2, 3, 19]),
        torch.tensor([14, 40, 0]),
        torch.empty(0),
        torch.empty(0),
        torch.tensor([[7, 0, 0], [5, 9, 2], [4, 0, 0]], dtype=torch.int32),
    )
    numbers = page_lists(batch)
    assert numbers.starts.tolist() == [0, 2, 3, 19]
    assert numbers.page_starts.tolist() == [0, 1, 4, 5]
    assert numbers.pages.tolist() == [7, 5, 9, 2, 4]
    assert numbers.last_slots.tolist() == [16, 9, 16]


def test_the_arguments_of_a_plan():
    fake, batch = FakeFlashInfer(), some_batch()
    rows = torch.zeros(22, 4, 64, dtype=torch.bfloat16)
    for form in (FORM, replace(FORM, window=7, softcap=50.0)):
        attend = attention(form, fake)
        attend(rows, attend.new_pools(12, 2, torch.bfloat16, CPU), batch)
    plain, optional = ({name: value for name, value in wrapper.plans[0].items() if not torch.is_tensor(value)}
                       for wrapper in fake.wrappers)  # fmt: skip
    assert plain == {
        "num_qo_heads": 4, "num_kv_heads": 2, "head_dim_qk": 64, "page_size": 16, "causal": True, "sm_scale": 0.125,
        "window_left": -1, "logits_soft_cap": None, "q_data_type": torch.bfloat16, "kv_data_type": torch.bfloat16,
    }  # fmt: skip
    assert optional == {**plain, "window_left": 6, "logits_soft_cap": 50.0}
    assert fake.wrappers[0].workspace.nbytes == 128 << 20, "the size that FlashInfer recommends"


def test_the_layout_of_the_pools():
    check_layout(attention(FORM, FakeFlashInfer()))


def test_the_layers_of_a_form_share_a_plan_per_batch():
    """And all forms the workspace and the numbers of the batch."""
    fake = FakeFlashInfer()
    plans = Plans(fake, CPU, FakeEvent)
    layers = [FlashInferAttention(plans, form) for form in (FORM, replace(FORM, window=7)) * 3]
    pools = layers[0].new_pools(12, 2, torch.bfloat16, CPU)
    for batch in (some_batch(), some_batch()):
        for layer in layers:
            layer(torch.zeros(22, 4, 64, dtype=torch.bfloat16), pools, batch)
    assert [(len(wrapper.plans), wrapper.runs) for wrapper in fake.wrappers] == [(2, 6)] * 2
    first, second = fake.wrappers
    assert first.workspace is second.workspace
    for plan, other in zip(first.plans, second.plans, strict=True):
        assert plan["paged_kv_indices"] is other["paged_kv_indices"]
    assert first.plans[0]["paged_kv_indices"] is not first.plans[1]["paged_kv_indices"]


def test_a_wrapper_that_has_planned_another_batch_plans_again():
    fake = FakeFlashInfer()
    plans, batches = Plans(fake, CPU, FakeEvent), (some_batch(), some_batch())
    shape = Shape(FORM, 4, 2, torch.bfloat16)
    for batch in (*batches, *batches):
        plans.of(batch, shape)
    assert len(fake.wrappers[0].plans) == 4


def test_the_numbers_end_with_the_batch():
    fake, batch = FakeFlashInfer(), some_batch()
    plans = Plans(fake, CPU, FakeEvent)
    plans.of(batch, Shape(FORM, 4, 2, torch.bfloat16))
    kept = weakref.ref(fake.wrappers[0].plans.pop()["paged_kv_indices"])
    del batch
    gc.collect()
    assert kept() is None


def test_a_plan_is_not_overwritten_before_the_device_has_it():
    """The wrapper's host memory is read by a copy that `plan` starts and does not wait for."""
    done: list[str] = []

    class Event(FakeEvent):
        def record(self) -> None:
            done.append("record")

        def synchronize(self) -> None:
            done.append("synchronize")

    class Wrapper(FakeWrapper):
        def plan(self, *arguments, **options) -> None:
            super().plan(*arguments, **options)
            done.append("plan")

    plans = Plans(Wrapper, CPU, Event)
    for batch in (some_batch(), some_batch()):
        for _ in range(3):
            plans.of(batch, Shape(FORM, 4, 2, torch.bfloat16))
    assert done == ["synchronize", "plan", "record"] * 2


def test_the_host_never_waits_for_the_device():
    """But for the plan before, see above."""
    fake, batch = FakeFlashInfer(), on_gpu(some_batch())
    rows = torch.empty(22, 8, 64, dtype=torch.bfloat16, device=GPU)
    query, key, value = rows.split([4, 2, 2], dim=1)
    with torch.inference_mode(), HostWaits() as waits:
        attend = attention(replace(FORM, window=30), fake, GPU)
        pools = attend.new_pools(12, 2, torch.bfloat16, GPU)
        for _ in range(2):
            attend.store(key, value, pools, batch.slots)
            output = attend(query, pools, batch)
    assert output.shape == (22, 4, 64)
    assert (output.dtype, output.device) == (torch.bfloat16, GPU)
    assert waits.found == []


def test_one_copy_to_the_device_per_iteration(monkeypatch):
    batch, copies, to = on_gpu(some_batch()), [], torch.Tensor.to

    def counted(tensor, *arguments, **options):
        if tensor.device == CPU and GPU in arguments:
            copies.append((tensor.view(torch.int32).tolist(), options))
        return to(tensor, *arguments, **options)

    monkeypatch.setattr(torch.Tensor, "to", counted)
    plans = Plans(FakeFlashInfer(), GPU, FakeEvent)
    for form in (FORM, replace(FORM, window=7)):
        plans.of(batch, Shape(form, 4, 2, torch.bfloat16))
    assert copies == [([0, 1, 2, 3, 6, 7, 8, 9, 10, 11], {"non_blocking": True})], "places in a table 6 blocks wide"


@pytest.mark.parametrize("form", [FORM, replace(FORM, window=40), replace(FORM, window=40, softcap=30.0)], ids=str)
@pytest.mark.parametrize("heads", [(4, 4), (8, 1)])
def test_the_self_test_passes(form, heads):
    """With contexts on the host only: no decode graph contains the attention."""
    fake = FakeFlashInfer()
    attend = attention(form, fake)
    self_test_attention(attend, form, heads, torch.bfloat16, CPU)
    assert not attend.recordable
    assert fake.wrappers[0].runs == 1
