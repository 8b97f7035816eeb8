"""Weights as integers: the error of a number is at most half its group's scale, whatever the other groups have."""

from __future__ import annotations

import pytest
import torch
from orca_kernels.cpu.kernels import CpuKernels
from orca_kernels.cpu.panel_linear import PanelLinear
from orca_kernels.cuda.kernels import CudaKernels
from orca_kernels.fallback import Operations
from orca_kernels.quantization import GROUP, OUTPUTS_AT_ONCE, W8A8, WEIGHT_ONLY, quantize
from orca_kernels.reference import ReferenceKernels
from support.cpu_targets import cpu_target_params, load
from support.cuda_emulator import EmulatedLauncher

LEAST = {"int8": -128, "int4": -8}
weight_only = pytest.mark.parametrize("quantization", WEIGHT_ONLY)


@weight_only
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


@weight_only
def test_groups_of_zeros_and_of_subnormal_numbers_stay_finite(quantization):
    weight = torch.zeros(3, 2 * GROUP)
    weight[1, GROUP:] = 1e-44
    weight[2, :GROUP] = 3e38
    dequantised = quantize(weight, quantization).dequantized(torch.float32)
    torch.testing.assert_close(dequantised, weight, atol=1e-38, rtol=1e-6)
    assert (dequantised[0] == 0).all()


@weight_only
def test_a_shard_has_the_numbers_of_the_whole_where_its_groups_align(quantization):
    """So that two ranks serve the model that one rank serves."""
    weight = torch.randn(64, 4 * GROUP)
    whole = quantize(weight, quantization)
    half = quantize(weight[:, 2 * GROUP :].contiguous(), quantization)
    assert torch.equal(half.numbers, whole.numbers[:, 2 * GROUP :])
    assert torch.equal(half.scales, whole.scales[:, 2:])
    rows = quantize(weight[32:], quantization)
    assert torch.equal(rows.numbers, whole.numbers[32:])


@weight_only
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


@weight_only
@pytest.mark.parametrize("kernels", [ReferenceKernels(), CudaKernels(EmulatedLauncher())], ids=["reference", "cuda"])
def test_other_kernels_dequantise(quantization, kernels):
    weight, x = torch.randn(40, 30), torch.randn(3, 30)
    assert quantization not in kernels.quantized_products
    quantised = quantize(weight, quantization)
    found = kernels.quantized_linear(quantised, None, torch.float32)(x)
    torch.testing.assert_close(found, x @ quantised.dequantized(torch.float32).t())


@pytest.mark.parametrize("inputs", [1, 127, 500])
def test_w8a8_has_one_scale_per_output(inputs):
    """Of any number of outputs; every weight is within half a step."""
    outputs = OUTPUTS_AT_ONCE + 3
    weight = torch.randn(outputs, inputs) * torch.logspace(-3, 3, outputs).unsqueeze(1)
    weight[1] = 0
    quantised = quantize(weight, W8A8)
    assert (quantised.numbers.shape, quantised.scales.shape) == ((outputs, inputs), (outputs, 1))
    torch.testing.assert_close(quantised.scales, weight.abs().amax(dim=1, keepdim=True) / 127)
    assert quantised.numbers.abs().amax(dim=1).tolist() == [127, 0, *[127] * (outputs - 2)]
    assert ((quantised.dequantized(torch.float32) - weight).abs() <= 0.501 * quantised.scales).all()
    assert torch.equal(quantize(weight[5:9], W8A8).numbers, quantised.numbers[5:9]), "outputs can be divided"
