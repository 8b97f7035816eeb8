"""The reference kernels against definitions written out in float64."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from orca_kernels.interface import BLOCK_SIZE, RaggedBatch
from orca_kernels.reference import ReferenceKernels

KERNELS = ReferenceKernels()


def ragged(contexts, counts, num_blocks, generator):
    """Returns a batch whose requests hold scattered blocks."""
    order = torch.randperm(num_blocks, generator=generator).tolist()
    tables, slots, positions, starts = [], [], [], [0]
    for context, count in zip(contexts, counts, strict=True):
        table = [order.pop() for _ in range(-(-(context + count) // BLOCK_SIZE))]
        tables.append(table)
        for position in range(context, context + count):
            positions.append(position)
            slots.append(table[position // BLOCK_SIZE] * BLOCK_SIZE + position % BLOCK_SIZE)
        starts.append(starts[-1] + count)
    longest = max(map(len, tables))
    return RaggedBatch(
        tuple(starts),
        tuple(contexts),
        torch.tensor(positions),
        torch.tensor(slots),
        torch.tensor([table + [0] * (longest - len(table)) for table in tables]),
    )


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 60), st.integers(1, 40)), min_size=1, max_size=5),
    st.sampled_from([(1, 1), (4, 4), (6, 2)]),
    st.sampled_from([8, 80]),
    st.sampled_from([None, 1, 7, 16]),
    st.integers(0, 1000),
)
def test_attention_over_scattered_blocks(parts, heads, head_dim, window, seed):
    """Any mix of chunks and increments; unwritten slots hold NaN, which no output may show."""
    generator = torch.Generator().manual_seed(seed)
    num_heads, num_kv_heads = heads
    batch = ragged([c for c, _ in parts], [n for _, n in parts], 64, generator)
    pools = [torch.full((64, BLOCK_SIZE, num_kv_heads, head_dim), float("nan")) for _ in range(2)]
    total = batch.query_start[-1]
    query = torch.randn(total, num_heads, head_dim, generator=generator)
    output_rows = []
    for index, (context, count) in enumerate(parts):
        length = context + count
        key, value = (torch.randn(length, num_kv_heads, head_dim, generator=generator) for _ in range(2))
        table = batch.block_table[index]
        every = torch.tensor([int(table[p // BLOCK_SIZE]) * BLOCK_SIZE + p % BLOCK_SIZE for p in range(length)])
        KERNELS.store(key, value, *pools, every)
        for i in range(count):
            for head in range(num_heads):
                kv_head = head // (num_heads // num_kv_heads)
                seen = slice(0 if window is None else max(0, context + i + 1 - window), context + i + 1)
                q = query[batch.query_start[index] + i, head].double()
                weights = torch.softmax(key[seen, kv_head].double() @ q * 0.3, dim=0)
                output_rows.append(weights @ value[seen, kv_head].double())
    expected = torch.stack(output_rows).view(total, num_heads, head_dim)
    output = KERNELS.attention(query, *pools, batch, 0.3, window)
    torch.testing.assert_close(output.double(), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("size", [1, 7, 96])
def test_norms(size):
    x, weight, bias = torch.randn(5, size), torch.randn(size), torch.randn(size)
    wide = x.double()
    centred = wide - wide.mean(-1, keepdim=True)
    expected = centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight + bias
    torch.testing.assert_close(KERNELS.layer_norm(x, weight, bias, 1e-5).double(), expected, atol=1e-5, rtol=1e-4)
    expected = wide / (wide.square().mean(-1, keepdim=True) + 1e-6).sqrt() * weight
    torch.testing.assert_close(KERNELS.rms_norm(x, weight, 1e-6).double(), expected, atol=1e-5, rtol=1e-4)


def test_activations():
    x, up = torch.randn(4, 9), torch.randn(4, 9)
    cubic = 0.5 * x * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3)))
    torch.testing.assert_close(KERNELS.gelu_tanh(x), cubic)
    torch.testing.assert_close(KERNELS.silu_and_multiply(x, up), x / (1 + torch.exp(-x)) * up)


def test_rotation_turns_each_pair_by_its_angle():
    """Element i and i + D/2 are one complex number, turned by the position's angle (RoFormer, halves layout)."""
    x = torch.randn(6, 3, 8)
    angle = torch.rand(6, 4)
    both = torch.cat((angle, angle), dim=-1)
    turned = torch.complex(x[..., :4], x[..., 4:]) * torch.polar(torch.ones(6, 1, 4), angle.unsqueeze(1))
    expected = torch.cat((turned.real, turned.imag), dim=-1)
    torch.testing.assert_close(KERNELS.rotate(x, both.cos(), both.sin()), expected)
