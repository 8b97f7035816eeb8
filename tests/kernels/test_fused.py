"""The compositions that a backend may fuse, against definitions in float64 and against the operations one by one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from orca_contract.kv_blocks import BLOCK_SIZE
from orca_kernels.attention_self_test import ERROR
from orca_kernels.cpu.kernels import NAMES, CpuKernels
from orca_kernels.cuda.kernels import CudaKernels
from orca_kernels.cuda.modules import CupyLauncher, Grid, Kernel
from orca_kernels.interface import AttentionForm, Kernels, Norm, Pools, Rotation
from orca_kernels.reference import ReferenceKernels
from support.cpu_targets import load
from support.cuda_emulator import EmulatedLauncher
from support.on_device import OnDevice, whole
from support.ragged import ragged
from support.variants import one_short

CPU = torch.device("cpu")
KERNELS = ["reference", "cpu", "cuda-emulated", *(["cuda"] if torch.cuda.is_available() else [])]
EPSILON = 1e-5
HEAD_DIMS = [80, 128, *(pytest.param(dim, marks=pytest.mark.long) for dim in (64, 96, 256))]


@pytest.fixture(scope="module", params=KERNELS)
def kernels(request, dtype) -> Iterator[Kernels]:
    if request.param == "cuda-emulated":
        yield OnDevice(CudaKernels(EmulatedLauncher()), CPU)
    elif request.param == "cuda":
        yield OnDevice(CudaKernels(CupyLauncher()), torch.device("cuda"))
    elif request.param == "cpu" and dtype in NAMES:
        yield CpuKernels(load(), dtype)
    else:
        yield ReferenceKernels()


class CountedLauncher(EmulatedLauncher):
    """Notes the names of the launched kernels."""

    def __init__(self) -> None:
        super().__init__()
        self.launched: list[str] = []

    def launch(self, kernel: Kernel, grid: Grid, threads: int, arguments: Sequence[Any]) -> None:
        self.launched.append(kernel.name)
        super().launch(kernel, grid, threads, arguments)


def moved(rows: torch.Tensor) -> torch.Tensor:
    """Return rows as a view of wider ones, from an odd place on."""
    wide = torch.zeros(len(rows), rows[0].numel() + 1, dtype=rows.dtype)
    wide[:, 1:] = rows.flatten(1)
    return wide[:, 1:].unflatten(1, rows.shape[1:])


def definition(operation: str, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    if operation == "layer_norm":
        return torch.nn.functional.layer_norm(x, x.shape[-1:], weight, bias, EPSILON)
    return x / (x.square().mean(-1, keepdim=True) + EPSILON).sqrt() * (weight + (operation == "rms_norm_plus_one"))


@pytest.mark.parametrize("operation", ["layer_norm", "rms_norm", "rms_norm_plus_one"])
@pytest.mark.parametrize("size", [1, 7, 96, pytest.param(768, marks=pytest.mark.long), 8200])
@pytest.mark.parametrize("place", [lambda rows: rows, moved], ids=["dense", "odd"])
def test_a_residual_and_its_norm(kernels, dtype, operation, size, place):
    """8,200 elements are more than a thread block keeps in registers."""
    generator = torch.Generator().manual_seed(size)
    residual, addend = (torch.randn(3, size, generator=generator).to(dtype) for _ in range(2))
    addend_bias, weight, bias = (torch.randn(size, generator=generator).to(dtype) for _ in range(3))
    norm = Norm(operation, (weight, bias, EPSILON) if operation == "layer_norm" else (weight, EPSILON))
    for added in (None, addend_bias):
        total, normed = kernels.add_and_norm(place(residual), place(addend), added, norm)
        exact = residual.double() + addend.double() + (0 if added is None else added.double())
        assert total.dtype == normed.dtype == dtype
        torch.testing.assert_close(total.double(), exact, atol=ERROR[dtype], rtol=ERROR[dtype])
        # Of the stored total, so that the norm is the same if another kernel computes it.
        expected = definition(operation, total.double(), weight.double(), bias.double())
        torch.testing.assert_close(normed.double(), expected, atol=ERROR[dtype], rtol=ERROR[dtype])
        assert torch.equal(getattr(kernels, operation)(total, *norm.arguments), normed)
        if added is None:
            assert torch.equal(total, residual + addend), "rounded once"


def heads_of(count: int, heads: tuple[int, int], dim: int, dtype: torch.dtype, joined: bool):
    """Return queries and keys, as one tensor or as two, values, and the rotation of `count` tokens."""
    generator = torch.Generator().manual_seed(dim)
    num_queries, num_keys = heads
    rows = torch.randn(count, num_queries + 2 * num_keys, dim, generator=generator).to(dtype)
    angle = torch.rand(count, dim // 2, generator=generator) * 6
    both = torch.cat((angle, angle), dim=-1)
    query, key, value = rows.split([num_queries, num_keys, num_keys], dim=1)
    queries_and_keys = [rows[:, : num_queries + num_keys]] if joined else [query.clone(), key.clone()]
    return queries_and_keys, value, Rotation(both.cos(), both.sin())


@pytest.mark.parametrize("heads", one_short([(6, 2), (4, 4), (8, 1)]), ids=str)
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
@pytest.mark.parametrize("joined", [True, False], ids=["one tensor", "two tensors"])
def test_rotated_and_stored_heads(kernels, dtype, heads, head_dim, joined):
    """Bit for bit what rotation and store write one after another, and to no other place; attention reads it."""
    batch = ragged([20, 0, 47], [1, 19, 1], 12, torch.Generator().manual_seed(5))
    attend = kernels.attention(AttentionForm(head_dim, 0.3), dtype)
    outcomes = []
    for compose in (kernels.rotate_and_store, lambda *rest: ReferenceKernels.rotate_and_store(kernels, *rest)):
        queries_and_keys, value, rotation = heads_of(21, heads, head_dim, dtype, joined)
        values = whole(value).clone()
        pools = Pools(*(pool.fill_(0.5) for pool in Pools.zeros(12, heads[1], head_dim, dtype, CPU)))
        query = compose(queries_and_keys, value, rotation, attend, pools, batch.slots)
        assert query.shape == (21, heads[0], head_dim)
        if joined:
            beside = whole(value).view(21, -1, head_dim)[:, -heads[1] :]
            assert torch.equal(beside, values.view(21, -1, head_dim)[:, -heads[1] :])
        outcomes.append((query, pools, attend(query, pools, batch)))
    (query, pools, attended), (expected_query, expected_pools, expected) = outcomes
    assert torch.equal(query, expected_query)
    assert all(torch.equal(*pair) for pair in zip(pools, expected_pools, strict=True))
    assert torch.equal(attended, expected)


@pytest.mark.parametrize("head_dim", one_short([80, 64]))
def test_rotated_and_stored_heads_are_those_of_the_definition(kernels, dtype, head_dim):
    """Prompts whose first slots are all stored here, against plain torch in float64."""
    heads, counts = (6, 2), [21, 9]
    batch = ragged([0, 0], counts, 5, torch.Generator().manual_seed(2))
    outputs = []
    for backend, kind in ((kernels, dtype), (ReferenceKernels(), torch.float64)):
        queries_and_keys, value, rotation = heads_of(sum(counts), heads, head_dim, dtype, True)
        attend = backend.attention(AttentionForm(head_dim, 0.1), kind)
        pools = Pools(*(pool.fill_(float("nan")) for pool in Pools.zeros(5, heads[1], head_dim, kind, CPU)))
        rotation = Rotation(*(part.to(torch.float32 if kind == dtype else kind) for part in rotation))
        query = backend.rotate_and_store(
            [part.to(kind) for part in queries_and_keys], value.to(kind), rotation, attend, pools, batch.slots
        )
        outputs.append(attend(query, pools, batch).double())
    torch.testing.assert_close(*outputs, atol=ERROR[dtype], rtol=ERROR[dtype])


@pytest.mark.parametrize("joined", [True, False], ids=["one tensor", "two tensors"])
def test_heads_that_do_not_begin_at_multiples_of_16_bytes(kernels, dtype, joined):
    batch = ragged([0], [21], 3, torch.Generator().manual_seed(5))
    attend = kernels.attention(AttentionForm(64, 0.3), dtype)
    outcomes = []
    for place in (torch.clone, moved):
        queries_and_keys, value, rotation = heads_of(21, (6, 2), 64, dtype, joined)
        pools = Pools(*(pool.fill_(0.5) for pool in Pools.zeros(3, 2, 64, dtype, CPU)))
        query = kernels.rotate_and_store(
            [place(part) for part in queries_and_keys], place(value), rotation, attend, pools, batch.slots
        )
        outcomes.append((query.clone(), *pools))
    assert all(torch.equal(*pair) for pair in zip(*outcomes, strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_on_cuda_each_is_one_launch(dtype):
    launcher = CountedLauncher()
    kernels = CudaKernels(launcher)
    weight = torch.ones(96, dtype=dtype)
    residual = torch.ones(5, 96, dtype=dtype)
    total, _ = kernels.add_and_norm(residual, residual.clone(), weight, Norm("rms_norm", (weight, EPSILON)))
    assert total.data_ptr() == residual.data_ptr(), "in place"
    queries_and_keys, value, rotation = heads_of(5, (6, 2), 64, dtype, True)
    attend, pools = kernels.attention(AttentionForm(64, 0.3), dtype), Pools.zeros(1, 2, 64, dtype, CPU)
    query = kernels.rotate_and_store(queries_and_keys, value, rotation, attend, pools, torch.arange(5))
    assert query.data_ptr() == queries_and_keys[0].data_ptr(), "in place"
    assert launcher.launched == ["orca_rms_norm", "orca_rotate_and_store"]


def test_on_cuda_a_form_of_the_references_attention_is_composed():
    """Of a softcap, for which there is no kernel."""
    launcher = CountedLauncher()
    kernels = CudaKernels(launcher)
    queries_and_keys, value, rotation = heads_of(5, (6, 2), 64, torch.float32, True)
    attend = kernels.attention(AttentionForm(64, 0.3, softcap=30.0), torch.float32)
    pools = Pools.zeros(1, 2, 64, torch.float32, CPU)
    kernels.rotate_and_store(queries_and_keys, value, rotation, attend, pools, torch.arange(5))
    assert launcher.launched == ["orca_rotate"]
    assert pools.keys.shape[-1] == BLOCK_SIZE
    assert torch.equal(pools.values[0, :, :5], value.transpose(0, 1))


@pytest.mark.parametrize("bias", [None, torch.ones(8)], ids=["no bias", "bias"])
def test_which_maps_add_a_residual_within_their_product(bias):
    """cuBLAS accumulates, but adds a bias before that by a kernel, so that the next norm adds both in fewer passes."""
    weight = torch.ones(8, 4)
    assert CpuKernels(load(), torch.float32).linear(weight.clone(), bias).fuses_add
    assert not ReferenceKernels().linear(weight, bias).fuses_add
    assert CudaKernels(CountedLauncher()).linear(weight, bias).fuses_add == (bias is None)
