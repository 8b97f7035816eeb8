"""Every implementation against definitions in float64: plain torch, every CPU target that can run here, and CUDA.

The CUDA kernels run on a GPU where there is one, and everywhere under an emulation of its threads (cuda_emulation.h).
The kernels for Arm run under QEMU (emulated_arm.py).
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from orca_contract.kv_blocks import BLOCK_SIZE
from orca_kernels.attention_self_test import ERROR
from orca_kernels.cpu.kernels import NAMES, CpuKernels
from orca_kernels.cpu.panel_linear import PanelLinear
from orca_kernels.cpu.targets import CpuTarget
from orca_kernels.cuda.kernels import CudaKernels
from orca_kernels.cuda.modules import CupyLauncher
from orca_kernels.interface import AnyPools, AttentionForm, Int8Pools, Kernels, Pools
from orca_kernels.kv_quantization import dequantize_rows, quantize_rows
from orca_kernels.quantization import BITS, WEIGHT_ONLY, QuantizedWeight, quantize
from orca_kernels.reference import ReferenceKernels
from support.cpu_targets import cpu_target_params, load
from support.cuda_emulator import EmulatedLauncher
from support.emulated_arm import emulated_arm_library, emulated_arm_params, needs_emulator
from support.linear_maps import assert_one_product_gives_both
from support.on_device import OnDevice
from support.ragged import ragged
from support.variants import one_short

CPU = torch.device("cpu")
KERNELS = [
    "reference", *cpu_target_params(), "cuda-emulated", *(["cuda"] if torch.cuda.is_available() else []),
    *emulated_arm_params(),
]  # fmt: skip


@pytest.fixture(scope="module", params=KERNELS)
def kernels(request, dtype) -> Iterator[Kernels]:
    if request.param == "reference" or (isinstance(request.param, CpuTarget) and dtype not in NAMES):
        yield ReferenceKernels()
    elif request.param == "cuda-emulated":
        yield OnDevice(CudaKernels(EmulatedLauncher()), CPU)
    elif request.param == "cuda":
        yield OnDevice(CudaKernels(CupyLauncher()), torch.device("cuda"))
    elif needs_emulator(request.param):
        library = emulated_arm_library(request.param)
        with library.tensors_noted():
            yield CpuKernels(library, dtype)
    else:
        yield CpuKernels(load(request.param), dtype)


def close(found: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype) -> None:
    assert found.dtype == dtype
    torch.testing.assert_close(found.double(), expected, atol=ERROR[dtype], rtol=ERROR[dtype])


PARTS = st.lists(
    st.one_of(
        st.tuples(st.integers(0, 200), st.just(1)),
        st.tuples(st.integers(0, 60), st.integers(1, 90)),
    ),
    min_size=1,
    max_size=6,
)


@settings(max_examples=settings.default.max_examples * 3 // 10)  # the emulation takes long
@given(
    parts=PARTS,
    heads=st.sampled_from([(1, 1), (4, 4), (6, 2), (8, 1)]),
    head_dim=st.sampled_from([8, 32, 64, 80]),
    window=st.sampled_from([None, 1, 7, 64, 100]),
    seed=st.integers(0, 1000),
)
# On CUDA the third of four warps has no row: rows would begin at position 64, from where a window of 1 sees no slot.
@example(parts=[(32, 20)], heads=(1, 1), head_dim=32, window=1, seed=0)
def test_attention_over_scattered_blocks(kernels, dtype, parts, heads, head_dim, window, seed):
    """Any mix of chunks and increments in one call; slots that nobody wrote hold NaN, which no output may show."""
    check_attention(kernels, dtype, parts, heads, head_dim, window, seed)


@pytest.mark.parametrize("head_dim", one_short([128, 32, 256]))
@pytest.mark.parametrize(
    "parts",
    [
        pytest.param([(4095, 1), (0, 1)], marks=pytest.mark.long),
        pytest.param([(4000, 96)], marks=pytest.mark.exhaustive),
        [(0, 130), (700, 1), (64, 64), (63, 1)],
    ],
    ids=str,
)
def test_attention_over_long_contexts(request, kernels, dtype, parts, head_dim):
    if request.node.get_closest_marker("qemu") and parts[0][0] >= 4000:
        pytest.skip("takes minutes under an emulator")
    check_attention(kernels, dtype, parts, (2, 1), head_dim, None, 7)


@settings(max_examples=settings.default.max_examples * 3 // 10)
@given(
    parts=PARTS,
    heads=st.sampled_from([(1, 1), (4, 4), (6, 2), (8, 1)]),
    head_dim=st.sampled_from([8, 32, 64, 80]),
    window=st.sampled_from([None, 1, 7, 64, 100]),
    seed=st.integers(0, 1000),
)
@example(parts=[(0, 130), (700, 1), (64, 64), (63, 1)], heads=(2, 1), head_dim=128, window=None, seed=7)
# Keys that are rounded to the query's type after their dequantisation: too large an error, in bfloat16 and in float16.
@example(parts=[(176, 1), (20, 29), (23, 26), (22, 28)], heads=(8, 1), head_dim=80, window=None, seed=165)
@example(
    parts=[(16, 1), (64, 1), (192, 1), (0, 17), (64, 1), (55, 90)], heads=(1, 1), head_dim=80, window=None, seed=209
)
def test_attention_over_a_cache_of_integers(kernels, dtype, parts, heads, head_dim, window, seed):
    """Against the dequantised keys and values. Slots that nobody wrote have NaN as their scales."""
    check_attention(kernels, dtype, parts, heads, head_dim, window, seed, "int8")


def unwritten_pools(
    num_blocks: int, num_kv_heads: int, head_dim: int, dtype: torch.dtype, cache: str | None
) -> AnyPools:
    """Return pools that no output may show."""
    if cache is None:
        pools = Pools.zeros(num_blocks, num_kv_heads, head_dim, dtype, CPU)
        return Pools(*(pool.fill_(float("nan")) for pool in pools))
    integers = Int8Pools.zeros(num_blocks, num_kv_heads, head_dim, CPU)
    return Int8Pools(*(pool.fill_(float("nan") if pool.is_floating_point() else 99) for pool in integers))


def as_read(rows: torch.Tensor, cache: str | None) -> torch.Tensor:
    """Return what attention reads of keys or values."""
    return rows.double() if cache is None else dequantize_rows(*quantize_rows(rows)).double()


def check_attention(kernels, dtype, parts, heads, head_dim, window, seed, cache=None):
    attend = kernels.attention(AttentionForm(head_dim, 0.3, window, kv_cache_dtype=cache), dtype)
    generator = torch.Generator().manual_seed(seed)
    num_heads, num_kv_heads = heads
    num_blocks = sum(-(-(context + count) // BLOCK_SIZE) for context, count in parts) + 3
    batch = ragged([context for context, _ in parts], [count for _, count in parts], num_blocks, generator)
    pools = unwritten_pools(num_blocks, num_kv_heads, head_dim, dtype, cache)
    total = int(batch.query_start[-1])
    # Queries, keys and values are slices of one wider row, as a fused projection leaves them.
    rows = torch.randn(total, num_heads + 2 * num_kv_heads, head_dim, generator=generator).to(dtype)
    query, key, value = rows.split([num_heads, num_kv_heads, num_kv_heads], dim=1)
    expected = torch.empty(total, num_heads, head_dim, dtype=torch.float64)
    for index, (context, count) in enumerate(parts):
        table, begin = batch.block_table[index], int(batch.query_start[index])
        places = torch.arange(context)
        old = [torch.randn(context, num_kv_heads, head_dim, generator=generator).to(dtype) for _ in range(2)]
        slots = table[places // BLOCK_SIZE] * BLOCK_SIZE + places % BLOCK_SIZE
        attend.store(*old, pools, slots)
        keys, values = (
            as_read(torch.cat((before, new[begin : begin + count])), cache).repeat_interleave(
                num_heads // num_kv_heads, 1
            )
            for before, new in zip(old, (key, value), strict=True)
        )
        position = torch.arange(context + count)
        distance = position[context:, None] - position[None, :]
        hidden = (distance < 0) | ((distance >= window) if window else False)
        scores = torch.einsum("qhd,khd->hqk", query[begin : begin + count].double(), keys) * 0.3
        weights = scores.masked_fill(hidden, float("-inf")).softmax(-1)
        expected[begin : begin + count] = torch.einsum("hqk,khd->qhd", weights, values)
    attend.store(key, value, pools, batch.slots)
    close(attend(query, pools, batch), expected, dtype)


def test_a_row_is_the_same_in_any_batch(kernels, dtype):
    """Bit for bit: what else is in the iteration does not reach a request's result."""
    generator = torch.Generator().manual_seed(3)
    parts = [(37, 1), (0, 70), (500, 1), (12, 5)]
    batch = ragged([context for context, _ in parts], [count for _, count in parts], 64, generator)
    pools = Pools(*(pool.normal_(generator=generator) for pool in Pools.zeros(64, 2, 32, dtype, CPU)))
    query = torch.randn(int(batch.query_start[-1]), 4, 32, generator=generator).to(dtype)
    attend = kernels.attention(AttentionForm(32, 0.2), dtype)
    whole = attend(query, pools, batch)
    for index, (context, count) in enumerate(parts):
        rows = slice(batch.query_start[index], batch.query_start[index + 1])
        alone = type(batch)(
            torch.tensor([0, count]), torch.tensor([context]), batch.positions[rows],
            batch.slots[rows], batch.block_table[index : index + 1],
        )  # fmt: skip
        assert torch.equal(attend(query[rows], pools, alone), whole[rows])


def random_pools(num_blocks, num_kv_heads, head_dim, dtype, cache, generator) -> AnyPools:
    if cache is None:
        pools = Pools.zeros(num_blocks, num_kv_heads, head_dim, dtype, CPU)
        return Pools(*(pool.normal_(generator=generator) for pool in pools))
    keys, values, *scales = Int8Pools.zeros(num_blocks, num_kv_heads, head_dim, CPU)
    integers = [pool.random_(-127, 128, generator=generator) for pool in (keys, values)]
    return Int8Pools(*integers, *(scale.uniform_(0.005, 0.02, generator=generator) for scale in scales))


ANY_CHUNKS = given(
    context=st.integers(0, 150),
    chunks=st.lists(st.integers(1, 40), min_size=1, max_size=5),
    heads=st.sampled_from([(1, 1), (4, 4), (6, 2), (8, 1)]),
    head_dim=st.sampled_from([16, 64, 80]),
    window=st.sampled_from([None, 7, 64]),
)
ALL_AT_ONCE = example(context=0, chunks=[150, 1, 1], heads=(4, 4), head_dim=64, window=None)


@pytest.mark.parametrize("target", cpu_target_params())
@pytest.mark.parametrize("name", ["float32", "bfloat16"])
@ANY_CHUNKS
@ALL_AT_ONCE
def test_a_token_is_the_same_in_any_chunk(target, name, context, chunks, heads, head_dim, window):
    """Bit for bit: computed with a prompt, after a rewind in another chunk, or as an increment (contracts.md, 7)."""
    check_chunks(target, getattr(torch, name), context, chunks, heads, head_dim, window)


@pytest.mark.parametrize("target", cpu_target_params())
@pytest.mark.parametrize("name", ["float32", "bfloat16"])
@ANY_CHUNKS
@ALL_AT_ONCE
def test_a_token_over_a_cache_of_integers_is_the_same_in_any_chunk(
    target, name, context, chunks, heads, head_dim, window
):
    check_chunks(target, getattr(torch, name), context, chunks, heads, head_dim, window, "int8")


def check_chunks(target, dtype, context, chunks, heads, head_dim, window, cache=None):
    num_heads, num_kv_heads = heads
    total = context + sum(chunks)
    generator = torch.Generator().manual_seed(total)
    num_blocks = -(-total // BLOCK_SIZE) + 2
    whole = ragged([context], [sum(chunks)], num_blocks, generator)
    pools = random_pools(num_blocks, num_kv_heads, head_dim, dtype, cache, generator)
    query = torch.randn(sum(chunks), num_heads, head_dim, generator=generator).to(dtype)
    form = AttentionForm(head_dim, 0.2, window, kv_cache_dtype=cache)
    attend = CpuKernels(load(target), dtype).attention(form, dtype)
    found, begin = [], 0
    for count in chunks:
        rows = slice(begin, begin + count)
        chunk = type(whole)(
            torch.tensor([0, count]), torch.tensor([context + begin]), whole.positions[rows],
            whole.slots[rows], whole.block_table,
        )  # fmt: skip
        found.append(attend(query[rows], pools, chunk))
        begin += count
    assert torch.equal(torch.cat(found), attend(query, pools, whole))


def test_a_row_of_a_linear_map_is_the_same_beside_any_others(kernels, dtype):
    """Bit for bit with the product of our own; others choose their order of sums by the number of rows."""
    weight, x = torch.randn(70, 96).to(dtype) / 8, torch.randn(40, 96).to(dtype)
    product = kernels.linear(weight.clone(), None)
    error = 0.0 if isinstance(product, PanelLinear) else ERROR[dtype]
    whole = product(x)
    for num_rows in range(1, len(x)):
        found = torch.cat((product(x[:num_rows]), product(x[num_rows:])))
        torch.testing.assert_close(found, whole, atol=error, rtol=error)


def test_rows_of_many_inputs(kernels, dtype):
    """Products of our own divide the inputs into segments (cpu/segments.h), but not those of few rows."""
    weight, bias, x = (torch.randn(*shape).to(dtype) / 8 for shape in ((40, 4422), (40,), (130, 4422)))
    product = kernels.linear(weight.clone(), bias.clone())
    close(product(x), x.double() @ weight.double().t() + bias.double(), dtype)
    error = 0.0 if isinstance(product, PanelLinear) else ERROR[dtype]
    for compute in (product, product.gelu_tanh):
        few = torch.cat([compute(rows) for rows in x.split(10)])
        torch.testing.assert_close(compute(x), few, atol=error, rtol=error)


@pytest.mark.parametrize(("inputs", "outputs"), [(7, 5), (96, 64), (64, 211)])
@pytest.mark.parametrize("num_rows", [1, 3, 12, 13, 33])
def test_linear_maps(kernels, dtype, inputs, outputs, num_rows):
    x, weight, bias = (
        torch.randn(*shape).to(dtype) / 8 for shape in ((num_rows, inputs), (outputs, inputs), (outputs,))
    )
    residual = torch.randn(2 * outputs, num_rows).to(dtype).t()[:, ::2]  # not dense
    y = x.double() @ weight.double().t()
    plain = kernels.linear(weight.clone(), None)
    close(plain(x), y, dtype)
    expected = residual.double() + y
    close(plain.add(x, residual.clone()), expected, dtype)
    y = y + bias.double()
    with_bias = kernels.linear(weight.clone(), bias.clone())
    close(with_bias(x), y, dtype)
    expected = residual.double() + y  # before add, which may overwrite it
    close(with_bias.add(x, residual), expected, dtype)
    gelu = 0.5 * y * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (y + 0.044715 * y**3)))
    close(with_bias.gelu_tanh(x), gelu, dtype)
    assert_one_product_gives_both(with_bias, x)


@pytest.mark.parametrize("target", [target for target in cpu_target_params() if "bf16" in target.id.split(" ")[0]])
@pytest.mark.parametrize("dot_products", [True, False])
@pytest.mark.parametrize("num_rows", [1, 3, 12, 13, 33])
def test_products_of_bfloat16_by_dot_products_and_by_widening(target, num_rows, dot_products):
    """Whichever of them this processor computes faster."""
    library = load(target)
    library.dot_products = dot_products
    x, weight = (torch.randn(count, 130).bfloat16() / 8 for count in (num_rows, 70))
    linear = CpuKernels(library, torch.bfloat16).linear(weight.clone(), None)
    assert isinstance(linear, PanelLinear)
    assert ("dot products" in CpuKernels(library, torch.bfloat16).name) == dot_products
    close(linear(x), x.double() @ weight.double().t(), torch.bfloat16)


def test_the_choice_of_the_instruction_does_not_vary():
    """Its measurement is the shortest of many runs, so that other work on the processor changes nothing."""
    assert len({load().dot_products for _ in range(10)}) == 1


@pytest.mark.parametrize(("inputs", "outputs"), [(7, 5), (128, 32), (129, 33), (300, 211), (1024, 70)])
@pytest.mark.parametrize("num_rows", [1, 3, 12, 13, 33])
@pytest.mark.parametrize("quantization", WEIGHT_ONLY)
def test_linear_maps_of_quantised_weights(kernels, dtype, quantization, inputs, outputs, num_rows):
    """Against the dequantised weights: groups of 128 inputs, also the smaller last one, have their own scales."""
    x, weight, bias = (
        torch.randn(*shape).to(dtype) / 8 for shape in ((num_rows, inputs), (outputs, inputs), (outputs,))
    )
    weight *= torch.logspace(-2, 1, inputs)
    residual = torch.randn(num_rows, outputs).to(dtype)
    quantised = quantize(weight, quantization)
    wide = quantised.dequantized(torch.float64)
    linear = kernels.quantized_linear(quantised, None, dtype)
    y = x.double() @ wide.t()
    size = y.abs().max().item()
    error = ERROR[dtype] * max(1.0, size)
    for found, expected in (
        (linear(x), y),
        (linear.add(x, residual.clone()), residual.double() + y),
        (kernels.quantized_linear(quantised, bias.clone(), dtype)(x), y + bias.double()),
    ):
        assert found.dtype == dtype
        torch.testing.assert_close(found.double(), expected, atol=error, rtol=0)
    gelu = torch.nn.functional.gelu(y, approximate="tanh")
    torch.testing.assert_close(linear.gelu_tanh(x).double(), gelu, atol=error, rtol=0)
    assert_one_product_gives_both(linear, x)


@pytest.mark.parametrize("group", [8, *(pytest.param(size, marks=pytest.mark.long) for size in (32, 64, 256)), 1 << 20])
@pytest.mark.parametrize("reordered", [False, True], ids=["in order", "reordered"])
@pytest.mark.parametrize("asymmetric", [False, True], ids=["symmetric", "zero points"])
@pytest.mark.parametrize("quantization", WEIGHT_ONLY)
def test_groups_of_other_sizes_and_inputs_in_another_order(kernels, dtype, quantization, asymmetric, reordered, group):
    """As checkpoints have them: 300 inputs are not a multiple of most groups, and one group may be all of them."""
    inputs, outputs, num_rows = 300, 37, 5
    least = -(1 << (BITS[quantization] - 1))
    numbers = torch.randint(least, -least, (outputs, inputs), dtype=torch.int8)
    scales = torch.rand(outputs, -(-inputs // group)) / -least
    zeros = torch.randint(least, -least, scales.shape, dtype=torch.int8) if asymmetric else None
    order = torch.randperm(inputs) if reordered else None
    differences = numbers.double()
    if zeros is not None:
        differences -= zeros.repeat_interleave(group, dim=1)[:, :inputs] if group < inputs else zeros
    weight = torch.empty(outputs, inputs, dtype=torch.float64)
    for place in range(inputs):
        weight[:, place if order is None else order[place]] = differences[:, place] * scales[:, place // group]
    quantised = QuantizedWeight(quantization, numbers.clone(), scales.clone(), group, order, zeros)
    torch.testing.assert_close(quantised.dequantized(torch.float64), weight, atol=1e-7, rtol=1e-7)
    x, residual = torch.randn(num_rows, inputs).to(dtype) / 8, torch.randn(num_rows, outputs).to(dtype)
    linear, y = kernels.quantized_linear(quantised, None, dtype), x.double() @ weight.t()
    error = ERROR[dtype] * max(1.0, y.abs().max().item())
    for found, expected in (
        (linear(x), y),
        (linear.add(x, residual.clone()), residual.double() + y),
        (linear.gelu_tanh(x), torch.nn.functional.gelu(y, approximate="tanh")),
    ):
        torch.testing.assert_close(found.double(), expected, atol=error, rtol=0)
    assert_one_product_gives_both(linear, x)


@pytest.mark.parametrize("quantization", WEIGHT_ONLY)
def test_a_row_of_a_quantised_map_is_the_same_beside_any_others(kernels, dtype, quantization):
    """Bit for bit, like a row of a linear map of our own."""
    weight, x = torch.randn(70, 200).to(dtype) / 8, torch.randn(40, 200).to(dtype)
    product = kernels.quantized_linear(quantize(weight, quantization), None, dtype)
    error = 0.0 if isinstance(product, PanelLinear) else ERROR[dtype]
    whole = product(x)
    for num_rows in range(1, len(x)):
        found = torch.cat((product(x[:num_rows]), product(x[num_rows:])))
        torch.testing.assert_close(found, whole, atol=error, rtol=error)


@pytest.mark.parametrize("size", [1, 7, 96, 768])
@pytest.mark.parametrize("num_rows", [1, 5, 64])
def test_norms(kernels, dtype, size, num_rows):
    x, weight, bias = (torch.randn(*shape).to(dtype) for shape in ((num_rows, size), (size,), (size,)))
    wide, scale, shift = x.double(), weight.double(), bias.double()
    centred = wide - wide.mean(-1, keepdim=True)
    expected = centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt() * scale + shift
    close(kernels.layer_norm(x, weight, bias, 1e-5), expected, dtype)
    expected = wide / (wide.square().mean(-1, keepdim=True) + 1e-6).sqrt() * scale
    close(kernels.rms_norm(x, weight, 1e-6), expected, dtype)
    heads = x.unsqueeze(1)  # as normalised heads come: [S, heads, D]
    close(kernels.rms_norm(heads, weight, 1e-6), expected.unsqueeze(1), dtype)


@pytest.mark.parametrize("size", [1, 9, 64])
def test_gated_activation(kernels, dtype, size):
    x = torch.cat((torch.randn(4, 2 * size), torch.full((1, 2 * size), 200.0), torch.full((1, 2 * size), -200.0)))
    gate, up = x.to(dtype).double().chunk(2, dim=1)
    close(kernels.silu_and_multiply(x.to(dtype)), gate * torch.sigmoid(gate) * up, dtype)


def test_rotation_turns_each_pair_by_its_angle(kernels, dtype):
    """Element i and i + D/2 are one complex number, turned by the position's angle (RoFormer, halves layout)."""
    rows = torch.randn(6, 5, 8).to(dtype)
    x = rows[:, :3]  # a view of wider rows
    angle = torch.rand(6, 4)
    both = torch.cat((angle, angle), dim=-1)
    wide = x.double()
    turned = torch.complex(wide[..., :4], wide[..., 4:]) * torch.polar(torch.ones(6, 1, 4), angle.unsqueeze(1)).to(
        torch.complex128
    )
    expected = torch.cat((turned.real, turned.imag), dim=-1)
    beside = rows[:, 3:].clone()
    close(kernels.rotate(x, both.cos(), both.sin()), expected, dtype)
    assert torch.equal(rows[:, 3:], beside)


def test_rows_that_do_not_begin_at_multiples_of_16_bytes(kernels, dtype):
    """A view of wider rows of an odd length, or from an odd place on."""

    def moved(rows: torch.Tensor) -> torch.Tensor:
        wide = torch.zeros(len(rows), rows[0].numel() + 1, dtype=rows.dtype)
        wide[:, 1:] = rows.flatten(1)
        return wide[:, 1:].unflatten(1, rows.shape[1:])

    batch = ragged([40, 0], [1, 20], 8, torch.Generator().manual_seed(5))
    attend = kernels.attention(AttentionForm(32, 0.3), dtype)
    query, key, value = (torch.randn(21, 2, 32).to(dtype) for _ in range(3))
    outputs = []
    for change in (torch.clone, moved):
        pools = Pools(*(pool.fill_(0.5) for pool in Pools.zeros(8, 2, 32, dtype, CPU)))
        attend.store(change(key), change(value), pools, batch.slots)
        outputs.append(attend(change(query), pools, batch))
    close(outputs[0], outputs[1].double(), dtype)
    weight, angle = torch.randn(97).to(dtype)[1:], torch.rand(21, 32)
    x = torch.randn(21, 3, 32).to(dtype)
    close(
        kernels.rotate(moved(x), angle.cos(), angle.sin()), kernels.rotate(x, angle.cos(), angle.sin()).double(), dtype
    )
    rows = torch.randn(21, 96).to(dtype)
    close(kernels.rms_norm(rows, weight, 1e-6), kernels.rms_norm(rows, weight.clone(), 1e-6).double(), dtype)
