"""Keys and values as integers: their error, rows without a scale, and the same numbers from every implementation."""

from __future__ import annotations

import pytest
import torch
from orca_kernels.cpu.kernels import CpuAttention, CpuKernels
from orca_kernels.cuda.kernels import CudaKernels
from orca_kernels.interface import AttentionForm, Int8Pools
from orca_kernels.kv_quantization import LARGEST, SMALLEST_SCALE, dequantize_rows, quantize_rows
from orca_kernels.reference import ReferenceAttention, ReferenceKernels
from support.cpu_targets import cpu_target_params, load
from support.cuda_emulator import EmulatedLauncher
from support.ragged import ragged

CPU = torch.device("cpu")


@pytest.fixture(params=[torch.float32, torch.bfloat16], ids=str)
def dtype(request) -> torch.dtype:
    return request.param


def test_every_value_is_within_half_a_step_and_the_largest_is_exact(dtype):
    rows = (torch.randn(50, 3, 64) * torch.logspace(-20, 20, 50)[:, None, None]).to(dtype)
    numbers, scales = quantize_rows(rows)
    assert (numbers.dtype, scales.dtype, scales.shape) == (torch.int8, torch.float32, (50, 3))
    assert torch.equal(numbers.abs().amax(-1), torch.full((50, 3), 127, dtype=torch.int8))
    wide = rows.float()
    error = (dequantize_rows(numbers, scales) - wide).abs()
    assert (error <= scales.unsqueeze(-1) * 0.5001).all()
    largest = error.gather(-1, wide.abs().argmax(-1, keepdim=True)).squeeze(-1)
    assert (largest <= scales * 1e-4).all()


def test_ties_are_rounded_to_even():
    numbers, scales = quantize_rows(torch.tensor([127.0, 0.5, 1.5, 2.5, -0.5, -1.5]))
    assert (numbers.tolist(), scales.item()) == ([127, 0, 2, 2, 0, -2], 1.0)


@pytest.mark.parametrize("largest", [0.0, 1e-44, SMALLEST_SCALE * LARGEST / 2])
def test_a_row_of_zeros_or_with_a_subnormal_scale_is_zero(largest):
    numbers, scales = quantize_rows(torch.tensor([[largest, -largest], [3.0, 1.0]]))
    assert numbers.tolist() == [[0, 0], [127, 42]]
    assert scales[0] == 0


@pytest.mark.parametrize("invalid", [float("inf"), float("-inf"), float("nan")])
def test_a_row_with_an_invalid_number_is_invalid_as_a_whole_and_the_others_are_not(invalid):
    rows = torch.randn(3, 16)
    rows[1, 4] = invalid
    dequantised = dequantize_rows(*quantize_rows(rows))
    assert dequantised.isnan().any(-1).tolist() == dequantised.isnan().all(-1).tolist() == [False, True, False]


def unusual_rows(dtype) -> torch.Tensor:
    """Return rows [40, 3, 64] of many magnitudes, with zeros, ties, infinities and NaN."""
    rows = torch.randn(40, 3, 64) * torch.logspace(-44, 30, 40)[:, None, None]
    rows[3, 1, 5], rows[5, 0, 0], rows[7, 2, 63] = float("inf"), float("nan"), float("-inf")
    rows[4] = 0
    rows[8] = torch.arange(64) - 32.5
    rows[8, :, 0] = 127
    return rows.to(dtype)


@pytest.mark.parametrize("target", cpu_target_params())
def test_the_cpu_stores_the_numbers_of_the_reference(target, dtype):
    """Bit for bit, also of rows without a scale; keys and values are slices of wider rows, and other slots stay."""
    form = AttentionForm(64, 0.2, kv_cache_dtype="int8")
    rows = torch.cat((unusual_rows(dtype), unusual_rows(dtype).flip(0)), dim=1)
    key, value = rows[:, 3:], rows[:, :3]
    slots = torch.randperm(5 * 16)[:40]
    fused = CpuKernels(load(target), dtype).attention(form, dtype)
    assert isinstance(fused, CpuAttention)
    found, expected = (Int8Pools(*(pool.fill_(9) for pool in Int8Pools.zeros(5, 3, 64, CPU))) for _ in range(2))
    fused.store(key, value, found, slots)
    ReferenceKernels().attention(form, dtype).store(key, value, expected, slots)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, atol=0, rtol=0, equal_nan=True)


@pytest.mark.parametrize("target", cpu_target_params())
def test_an_invalid_row_reaches_its_own_request_only(target, dtype):
    attend = CpuKernels(load(target), dtype).attention(AttentionForm(32, 0.2, kv_cache_dtype="int8"), dtype)
    batch = ragged([0, 0], [20, 5], 8, torch.Generator().manual_seed(0))
    key, value, query = (torch.randn(25, 2, 32).to(dtype) for _ in range(3))
    key[3, 1, 2] = float("inf")
    pools = Int8Pools.zeros(8, 2, 32, CPU)
    attend.store(key, value, pools, batch.slots)
    invalid = attend(query, pools, batch).isnan().all(-1)
    assert invalid[3:20, 1].all(), "the tokens that attend to it"
    assert not invalid[:, 0].any()
    assert not invalid[20:].any()


@pytest.mark.parametrize("target", cpu_target_params())
def test_store_and_attention_are_recorded(target, dtype):
    """A replay stores and reads what its inputs hold by then."""
    kernels = CpuKernels(load(target), dtype)
    attend = kernels.attention(AttentionForm(32, 0.2, window=40, kv_cache_dtype="int8"), dtype)
    batch = ragged([37, 5], [1, 1], 8, torch.Generator().manual_seed(0))
    pools = Int8Pools.zeros(8, 2, 32, CPU)
    rows = [torch.randn(2, heads, 32).to(dtype) for heads in (2, 2, 6)]
    key, value, query = rows

    def work() -> torch.Tensor:
        attend.store(key, value, pools, batch.slots)
        return attend(query, pools, batch)

    output, replay = kernels.calls(work)
    for _ in range(3):
        for row in rows:
            row.normal_()
        batch.context_length.add_(1)
        batch.slots.copy_(batch.slots ^ 1)
        replay()
        replayed, stored = output.clone(), Int8Pools(*(pool.clone() for pool in pools))
        assert torch.equal(replayed, work())
        assert all(torch.equal(before, after) for before, after in zip(stored, pools, strict=True))
        assert replayed.any()


def test_cuda_leaves_it_to_the_reference(dtype):
    """Master and worker refuse the option on GPUs before."""
    form = AttentionForm(64, 0.2, kv_cache_dtype="int8")
    assert isinstance(CudaKernels(EmulatedLauncher()).attention(form, dtype), ReferenceAttention)
