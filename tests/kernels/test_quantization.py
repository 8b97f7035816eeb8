"""Weights as integers: the error of a number is at most half its group's scale, whatever the other groups have."""

from __future__ import annotations

import pytest
import torch
from orca_kernels.cpu.kernels import CpuKernels, PanelLinear
from orca_kernels.cpu.library import load
from orca_kernels.cuda.kernels import CudaKernels
from orca_kernels.fallback import Operations
from orca_kernels.quantization import GROUP, quantize
from orca_kernels.reference import ReferenceKernels
from support.cpu_targets import cpu_target_params
from support.cuda_emulator import EmulatedLauncher


@pytest.mark.parametrize("inputs", [1, 127, 128, 129, 500])
def test_every_weight_is_within_half_a_step(inputs):
    weight = torch.randn(37, inputs) * torch.logspace(-3, 3, inputs)
    quantised = quantize(weight)
    assert quantised.numbers.dtype == torch.int8
    assert quantised.scales.shape == (37, -(-inputs // GROUP))
    for group, (part, numbers) in enumerate(
        zip(weight.split(GROUP, dim=1), quantised.numbers.split(GROUP, dim=1), strict=True)
    ):
        scale = part.abs().amax(dim=1, keepdim=True) / 127
        torch.testing.assert_close(quantised.scales[:, group : group + 1], scale)
        assert ((part - numbers * scale).abs() <= scale * 0.5001).all()
        assert (numbers.abs().amax(dim=1) == 127).all(), "the largest weight of a group uses the whole range"
    torch.testing.assert_close(quantised.dequantized(torch.float32), weight, atol=weight.abs().max() / 200, rtol=0)


def test_groups_of_zeros_and_of_subnormal_numbers_stay_finite():
    weight = torch.zeros(3, 2 * GROUP)
    weight[1, GROUP:] = 1e-44
    weight[2, :GROUP] = 3e38
    dequantised = quantize(weight).dequantized(torch.float32)
    torch.testing.assert_close(dequantised, weight, atol=1e-38, rtol=1e-6)
    assert (dequantised[0] == 0).all()


def test_a_shard_has_the_numbers_of_the_whole_where_its_groups_align():
    """So that two ranks serve the model that one rank serves."""
    weight = torch.randn(64, 4 * GROUP)
    whole = quantize(weight)
    half = quantize(weight[:, 2 * GROUP :].contiguous())
    assert torch.equal(half.numbers, whole.numbers[:, 2 * GROUP :])
    assert torch.equal(half.scales, whole.scales[:, 2:])
    rows = quantize(weight[32:])
    assert torch.equal(rows.numbers, whole.numbers[32:])


@pytest.mark.parametrize("target", cpu_target_params())
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_weights_are_read_as_integers_on_every_target_with_avx2(target, dtype):
    kernels = CpuKernels(load(target), dtype)
    operations = Operations(kernels)
    linear = operations.quantized_linear(quantize(torch.randn(40, 30)), None, dtype)
    if target.level == "x86-64":
        assert operations.missing == {"products of quantised weights (which are dequantised)"}
    else:
        assert isinstance(linear, PanelLinear)
        assert not operations.missing


@pytest.mark.parametrize("kernels", [ReferenceKernels(), CudaKernels(EmulatedLauncher())], ids=["reference", "cuda"])
def test_other_kernels_dequantise(kernels):
    assert not kernels.quantized_products
