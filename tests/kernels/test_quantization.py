"""Weights as integers: the error of a number is at most half its group's scale, whatever the other groups have."""

from __future__ import annotations

import pytest
import torch
from orca_kernels.cpu.kernels import CpuKernels, PanelLinear
from orca_kernels.cuda.kernels import CudaKernels
from orca_kernels.fallback import Operations
from orca_kernels.quantization import BITS, GROUP, quantize
from orca_kernels.reference import ReferenceKernels
from support.cpu_targets import cpu_target_params, load
from support.cuda_emulator import EmulatedLauncher

LEAST = {"int8": -128, "int4": -8}
pytestmark = pytest.mark.parametrize("quantization", BITS)


@pytest.mark.parametrize("inputs", [1, 127, 128, 129, 500])
def test_every_weight_is_within_half_a_step(quantization, inputs):
    """Except for a weight that rounds to one more than the largest integer: it is within one step."""
    least = LEAST[quantization]
    weight = torch.randn(37, inputs) * torch.logspace(-3, 3, inputs)
    quantised = quantize(weight, quantization)
    assert quantised.numbers.dtype == torch.int8
    assert quantised.scales.shape == (37, -(-inputs // GROUP))
    for group, (part, numbers) in enumerate(
        zip(weight.split(GROUP, dim=1), quantised.numbers.split(GROUP, dim=1), strict=True)
    ):
        scale = quantised.scales[:, group : group + 1]
        torch.testing.assert_close(scale.abs(), part.abs().amax(dim=1, keepdim=True) / -least)
        steps = (part / scale - numbers).abs()
        assert (steps[numbers < -least - 1] <= 0.501).all()
        assert (steps <= 1.001).all()
        assert (numbers.amin(dim=1) == least).all(), "the largest weight of a group has the least integer"
    error = (quantised.dequantized(torch.float32) - weight).abs() / weight.abs().max()
    assert error.max() <= 1.01 / -least


def test_groups_of_zeros_and_of_subnormal_numbers_stay_finite(quantization):
    weight = torch.zeros(3, 2 * GROUP)
    weight[1, GROUP:] = 1e-44
    weight[2, :GROUP] = 3e38
    dequantised = quantize(weight, quantization).dequantized(torch.float32)
    torch.testing.assert_close(dequantised, weight, atol=1e-38, rtol=1e-6)
    assert (dequantised[0] == 0).all()


def test_a_shard_has_the_numbers_of_the_whole_where_its_groups_align(quantization):
    """So that two ranks serve the model that one rank serves."""
    weight = torch.randn(64, 4 * GROUP)
    whole = quantize(weight, quantization)
    half = quantize(weight[:, 2 * GROUP :].contiguous(), quantization)
    assert torch.equal(half.numbers, whole.numbers[:, 2 * GROUP :])
    assert torch.equal(half.scales, whole.scales[:, 2:])
    rows = quantize(weight[32:], quantization)
    assert torch.equal(rows.numbers, whole.numbers[32:])


@pytest.mark.parametrize("target", cpu_target_params())
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_weights_are_read_as_integers_on_every_target_with_avx2(quantization, target, dtype):
    kernels = CpuKernels(load(target), dtype)
    operations = Operations(kernels)
    linear = operations.quantized_linear(quantize(torch.randn(40, 30), quantization), None, dtype)
    if target.level == "x86-64":
        assert operations.missing == {"products of quantised weights (which are dequantised)"}
    else:
        assert isinstance(linear, PanelLinear)
        assert not operations.missing


@pytest.mark.parametrize("kernels", [ReferenceKernels(), CudaKernels(EmulatedLauncher())], ids=["reference", "cuda"])
def test_other_kernels_dequantise(quantization, kernels):
    weight, x = torch.randn(40, 30), torch.randn(3, 30)
    assert not kernels.quantized_products
    quantised = quantize(weight, quantization)
    found = kernels.quantized_linear(quantised, None, torch.float32)(x)
    torch.testing.assert_close(found, x @ quantised.dequantized(torch.float32).t())
