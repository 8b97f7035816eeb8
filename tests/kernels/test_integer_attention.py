"""Products of sixteen bits over a cache of integers: their range, their precision, and where they are used.

test_kernels.py compares attention over such a cache with float64, on every target.
"""

from __future__ import annotations

import pytest
import torch
from orca_kernels.attention_self_test import ERROR
from orca_kernels.cpu.kernels import CpuKernels
from orca_kernels.cpu.library import CpuLibrary
from orca_kernels.cpu.targets import AVX512
from orca_kernels.interface import AttentionForm, Int8Pools
from orca_kernels.kv_quantization import dequantize_rows, quantize_rows
from support.cpu_targets import cpu_target_params, load
from support.ragged import ragged

CPU = torch.device("cpu")


def attended(
    library: CpuLibrary, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float
) -> torch.Tensor:
    """Return the attention of one prompt [S, N, D] over a cache of integers, in bfloat16."""
    attend = CpuKernels(library, torch.bfloat16).attention(
        AttentionForm(query.shape[-1], scale, kv_cache_dtype="int8"), torch.bfloat16
    )
    batch = ragged([0], [len(query)], 8, torch.Generator().manual_seed(0))
    pools = Int8Pools.zeros(8, key.shape[1], key.shape[2], CPU)
    attend.store(key, value, pools, batch.slots)
    return attend(query, pools, batch)


def exact(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float) -> torch.Tensor:
    """Return the same over the dequantised keys and values, in float64."""
    keys, values = (dequantize_rows(*quantize_rows(rows)).double() for rows in (key, value))
    scores = torch.einsum("qhd,khd->hqk", query.double(), keys) * scale
    hidden = torch.ones(len(query), len(query)).triu(1).bool()
    return torch.einsum("hqk,khd->qhd", scores.masked_fill(hidden, float("-inf")).softmax(-1), values)


@pytest.mark.parametrize("target", cpu_target_params())
@pytest.mark.parametrize("head_dim", [512, 528])
def test_the_largest_sums_keep_their_sign(target, head_dim):
    """All factors have the largest number of their types; in one of two heads the products are negative."""
    query = torch.ones(70, 2, head_dim).bfloat16()
    key, value = query.clone(), torch.randn(70, 2, head_dim).bfloat16()
    key[1::2] *= -1
    key[:, 1] *= -1
    found = attended(load(target), query, key, value, 4 / head_dim)
    expected = exact(query, key, value, 4 / head_dim)
    torch.testing.assert_close(found.double(), expected, atol=ERROR[torch.bfloat16], rtol=ERROR[torch.bfloat16])


@pytest.mark.parametrize("target", cpu_target_params())
def test_small_values_with_the_most_weight_are_exact_beside_large_ones_with_little(target):
    """As at a model's first token, whose values are small: common scales of a tile's weights keep both."""
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(90, 2, 64, generator=generator).bfloat16() for _ in range(3))
    key[0], query[..., 0], key[:, :, 0] = 0, 4, 0
    key[0, :, 0] = 3
    value[0] *= 1 / 256
    found = attended(load(target), query, key, value, 1.0)
    expected = exact(query, key, value, 1.0)
    error = (found.double() - expected).norm(dim=-1) / expected.norm(dim=-1)
    assert error.max() < ERROR[torch.bfloat16]


@pytest.mark.parametrize("target", cpu_target_params())
def test_integers_are_multiplied_where_target_and_processor_have_avx512_vnni(target):
    """Which their roundings show: elsewhere the results are those without VNNI."""
    query, key, value = (torch.randn(70, 2, 64).bfloat16() for _ in range(3))
    library, widening = load(target), load(target)
    widening.vnni = False
    found, other = (attended(each, query, key, value, 0.2) for each in (library, widening))
    assert torch.equal(found, other) != (library.vnni and target.needs >= AVX512)
    torch.testing.assert_close(found, other, atol=2e-2, rtol=2e-2)
