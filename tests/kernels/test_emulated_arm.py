"""The kernels for Arm under QEMU: what test_kernels.py does not compare, and what the emulation reports."""

from __future__ import annotations

import pytest
import torch
from orca_contract.kv_blocks import BLOCK_SIZE
from orca_kernels.cpu.calls import INTEGER, POINTER
from orca_kernels.cpu.kernels import NAMES, CpuKernels
from orca_kernels.cpu.targets import ARM_TARGETS
from orca_kernels.interface import AttentionForm, Int8Pools, Pools
from orca_kernels.quantization import quantize
from support import emulated_arm
from support.emulated_arm import EmulatedArmLibrary, emulated_arm_library, emulated_arm_params, needs_emulator
from support.ragged import ragged

CPU = torch.device("cpu")
LINE = 64
"""Bytes of a rank at the beginning of an all-reduce's memory (cpu/all_reduce.h)."""


@pytest.fixture(params=emulated_arm_params())
def library(request):
    library = emulated_arm_library(request.param)
    with library.tensors_noted():
        yield library


@pytest.mark.parametrize("dtype", NAMES, ids=str)
def test_all_products_are_those_of_the_library(library, dtype):
    """In a fixed order; bfloat16 is widened: Arm's dot products round to odd (cpu/vector.h)."""
    kernels = CpuKernels(library, dtype)
    assert kernels.fixed_order
    assert kernels.quantized_products
    assert kernels.name == f"C++ {library.target.name}"


@pytest.mark.parametrize("cache", [None, "int8"])
@pytest.mark.parametrize("window", [None, 40])
@pytest.mark.parametrize("dtype", NAMES, ids=str)
def test_a_token_is_the_same_in_any_chunk_on_arm(library, dtype, window, cache):
    """Bit for bit: computed with a prompt, in another chunk, or as an increment (contracts.md, 7)."""
    context, chunks, dim = 21, (30, 1, 1, 9, 1, 70), 32
    total = context + sum(chunks)
    generator = torch.Generator().manual_seed(1)
    whole = ragged([context], [sum(chunks)], -(-total // BLOCK_SIZE), generator)
    attend = CpuKernels(library, dtype).attention(AttentionForm(dim, 0.2, window, kv_cache_dtype=cache), dtype)
    kinds = Int8Pools.zeros(12, 2, dim, CPU) if cache else Pools.zeros(12, 2, dim, dtype, CPU)
    slots = whole.block_table[0, torch.arange(total) // BLOCK_SIZE] * BLOCK_SIZE + torch.arange(total) % BLOCK_SIZE
    key, value = (torch.randn(total, 2, dim, generator=generator).to(dtype) for _ in range(2))
    attend.store(key, value, kinds, slots)
    query = torch.randn(sum(chunks), 6, dim, generator=generator).to(dtype)
    found, begin = [], 0
    for count in chunks:
        rows = slice(begin, begin + count)
        chunk = type(whole)(
            torch.tensor([0, count]), torch.tensor([context + begin]), whole.positions[rows],
            whole.slots[rows], whole.block_table,
        )  # fmt: skip
        found.append(attend(query[rows], kinds, chunk))
        begin += count
    assert torch.equal(torch.cat(found), attend(query, kinds, whole))


@pytest.mark.parametrize("dtype", NAMES, ids=str)
@pytest.mark.parametrize("count", [5, 16, 1000])
def test_the_sum_over_three_ranks(library, dtype, count):
    """Threads instead of processes; the memory holds less than the 1000 elements, so that there are several rounds."""
    ranks, capacity = 3, 512
    x = torch.randn(ranks, count).to(dtype)
    memory = torch.zeros(ranks * LINE + 2 * ranks * capacity, dtype=torch.uint8)
    expected = ((x[0].float() + x[1].float()) + x[2].float()).to(dtype)
    function = library[f"orca_all_reduce_{NAMES[dtype]}"]
    function.argtypes = [POINTER, INTEGER, POINTER, INTEGER, INTEGER]
    function(x.data_ptr(), count, memory.data_ptr(), ranks, capacity)
    assert torch.equal(x, expected.expand(ranks, count))


def results(library: EmulatedArmLibrary) -> list[torch.Tensor]:
    """Return results in bfloat16, with values that are rounded up, down, to even, to infinity, and NaN."""
    generator = torch.Generator().manual_seed(5)

    def rows(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).bfloat16()

    kernels = CpuKernels(library, torch.bfloat16)
    gate_up = rows(40, 256)
    gate_up[0, :8] = torch.tensor([float("nan"), float("inf"), -float("inf"), 3e38, -3e38, 1e-40, -0.0, 88.0])
    x, weight = rows(33, 128), rows(48, 128)
    with library.tensors_noted():
        return [
            kernels.silu_and_multiply(gate_up),
            kernels.rms_norm(x, rows(128), 1e-6),
            kernels.linear(weight.clone(), rows(48))(x),
            kernels.quantized_linear(quantize(weight, "int4"), None, torch.bfloat16).gelu_tanh(x),
        ]


@pytest.mark.parametrize("target", emulated_arm_params()[:1])
def test_bfloat16_is_the_same_on_every_processor_of_arm(target):
    """Bit for bit: the conversion to bfloat16 by one instruction, and by several."""
    for newer, base in zip(
        results(emulated_arm_library(target)), results(emulated_arm_library(ARM_TARGETS[-1])), strict=True
    ):
        assert torch.equal(newer.view(torch.int16), base.view(torch.int16))


@pytest.mark.parametrize("target", emulated_arm_params()[-1:])
def test_an_access_beyond_memory_is_an_error(target, capfd):
    """Of the two parts of a row, the second one is missing."""
    library = EmulatedArmLibrary(target)
    x, y = torch.ones(1, 32), torch.empty(1, 32)
    function = library["orca_silu_and_multiply_float32"]
    function.argtypes = [POINTER, POINTER, INTEGER, INTEGER]
    with library.tensors_noted(), pytest.raises(RuntimeError, match=r"silu_and_multiply_float32: the emulator ended"):
        function(x.data_ptr(), y.data_ptr(), 1, 32)
    assert "signal 11" in capfd.readouterr().err
    with pytest.raises(AttributeError):
        library["orca_tiles_pay"]
    assert not hasattr(library, "orca_dot_products_pay")


def test_without_the_tools_the_tests_are_skipped_with_a_reason(monkeypatch):
    monkeypatch.setattr(emulated_arm.shutil, "which", lambda tool: None if tool.startswith("qemu") else tool)
    for param in emulated_arm_params():
        (skip,) = (mark for mark in param.marks if mark.name == "skip")
        assert skip.kwargs["reason"] == "no qemu-aarch64 (Debian: g++-aarch64-linux-gnu, qemu-user)"
        assert needs_emulator(param.values[0])
