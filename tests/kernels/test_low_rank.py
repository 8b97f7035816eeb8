"""Products of adapters: against float64, bit for bit alone and in company, and in a replay."""

from __future__ import annotations

import pytest
import torch
from orca_kernels.cpu.kernels import CpuKernels
from orca_kernels.interface import Kernels
from orca_kernels.low_rank import AdapterRows, LowRank
from orca_kernels.reference import ReferenceKernels, ReferenceLowRank
from support.cpu_targets import cpu_target_params, load
from torch.nn import functional

INPUTS, OUTPUTS = 48, 70
RANKS = {3: 4, 8: 5, 21: 32}
"""Ranks by adapter; with an odd rank, a row of B does not fill words of bfloat16."""
ARRANGEMENTS = (
    [3, 3, 3],  # one prompt
    [0, 0, 8, 8, 8, 21, 21],  # prompts one after the other
    [21, 0, 3, 8, 3, 0, 21, 8, 3],  # increments
    [3, 0, *[3] * 30, 8, *[3] * 14, 21, 3, 3],  # long and short runs
    [5, 3, 5],  # an adapter that does not change the map
    [0, 0],
)
TOLERANCE = {torch.float32: {"atol": 1e-5, "rtol": 1e-5}, torch.bfloat16: {"atol": 3e-2, "rtol": 2e-2}}


@pytest.fixture(params=[torch.float32, torch.bfloat16], ids=str)
def dtype(request) -> torch.dtype:
    return request.param


@pytest.fixture(params=["reference", *cpu_target_params()])
def kernels(request, dtype) -> Kernels:
    return ReferenceKernels() if request.param == "reference" else CpuKernels(load(request.param), dtype)


def factors(dtype: torch.dtype) -> dict[int, tuple[torch.Tensor, torch.Tensor]]:
    return {
        adapter: (torch.randn(rank, INPUTS).to(dtype) / 7, torch.randn(OUTPUTS, rank).to(dtype))
        for adapter, rank in RANKS.items()
    }


def filled(kernels: Kernels, of: dict[int, tuple[torch.Tensor, torch.Tensor]]) -> LowRank:
    low_rank = kernels.low_rank(INPUTS)
    for adapter, (down, up) in of.items():
        low_rank.put(adapter, down.clone(), up.clone())
    assert len(low_rank) == len(of)
    return low_rank


def rows(adapters: list[int]) -> AdapterRows:
    numbers = torch.tensor(adapters)
    return AdapterRows(numbers, [(each, (numbers == each).nonzero().flatten()) for each in set(adapters) - {0}])


@pytest.mark.parametrize("adapters", ARRANGEMENTS, ids=str)
def test_the_products_of_each_rows_adapter_are_added(kernels, dtype, adapters):
    """Of y and of the activated rows; those that no adapter changes keep their bits."""
    of = factors(dtype)
    low_rank, x = filled(kernels, of), torch.randn(len(adapters), INPUTS).to(dtype)
    y, activated = torch.randn(len(adapters), OUTPUTS).to(dtype), torch.randn(len(adapters), OUTPUTS).to(dtype)
    found, found_activated = y.clone(), activated.clone()
    low_rank.add(x, found, rows(adapters), found_activated)
    for row, adapter in enumerate(adapters):
        if adapter not in of:
            assert torch.equal(found[row], y[row])
            assert torch.equal(found_activated[row], activated[row])
            continue
        down, up = of[adapter]
        wanted = y[row].double() + up.double() @ (down.double() @ x[row].double())
        torch.testing.assert_close(found[row].double(), wanted, **TOLERANCE[dtype])
        gelu = functional.gelu(found[row].double(), approximate="tanh")
        torch.testing.assert_close(found_activated[row].double(), gelu, **TOLERANCE[dtype])
    again = y.clone()
    low_rank.add(x, again, rows(adapters))
    assert torch.equal(again, found)


@pytest.mark.parametrize("adapters", ARRANGEMENTS, ids=str)
def test_a_row_is_the_same_alone_and_in_company(kernels, dtype, adapters):
    """Bit for bit, but for kernels whose order of sums depends on the number of rows."""
    tolerance = {"atol": 0, "rtol": 0} if kernels.fixed_order else TOLERANCE[dtype]
    low_rank, x = filled(kernels, factors(dtype)), torch.randn(len(adapters), INPUTS).to(dtype)
    y, activated = torch.randn(2, len(adapters), OUTPUTS).to(dtype)
    together, together_activated = y.clone(), activated.clone()
    low_rank.add(x, together, rows(adapters), together_activated)
    for row, adapter in enumerate(adapters):
        one, alone, alone_activated = slice(row, row + 1), y[row : row + 1].clone(), activated[row : row + 1].clone()
        low_rank.add(x[one], alone, rows([adapter]), alone_activated)
        torch.testing.assert_close(alone, together[one], **tolerance)
        torch.testing.assert_close(alone_activated, together_activated[one], **tolerance)


def test_adapters_come_and_go(kernels, dtype):
    of, adapters = factors(dtype), [3, 8, 21, 0]
    x, y = torch.randn(4, INPUTS).to(dtype), torch.randn(4, OUTPUTS).to(dtype)
    low_rank, whole = kernels.low_rank(INPUTS), y.clone()
    low_rank.add(x, whole, rows(adapters))
    assert torch.equal(whole, y), "no adapter has come yet"
    low_rank = filled(kernels, of)
    low_rank.add(x, whole, rows(adapters))
    low_rank.remove(8)
    low_rank.remove(8)
    some = y.clone()
    low_rank.add(x, some, rows(adapters))
    assert torch.equal(some[1], y[1])
    torch.testing.assert_close(some[[0, 2, 3]], whole[[0, 2, 3]], **TOLERANCE[dtype])
    low_rank.put(8, *of[8])
    low_rank.add(x, y, rows(adapters))
    torch.testing.assert_close(y, whole, **TOLERANCE[dtype])


def test_a_replay_reads_which_row_uses_which_adapter(kernels, dtype):
    low_rank = filled(kernels, factors(dtype))
    if not isinstance(kernels, CpuKernels) or isinstance(low_rank, ReferenceLowRank):
        assert not low_rank.recordable
        return
    assert low_rank.recordable
    linear = kernels.linear(torch.randn(OUTPUTS, INPUTS).to(dtype), None)
    x, numbers = torch.randn(5, INPUTS).to(dtype), torch.zeros(5, dtype=torch.int64)

    def work() -> torch.Tensor:
        y, activated = linear.with_gelu_tanh(x)
        low_rank.add(x, y, AdapterRows(numbers, None), activated)
        return y + activated

    output, replay = kernels.calls(work)
    for adapters in ([3, 3, 8, 0, 21], [0, 0, 0, 0, 0], [8, 21, 3, 8, 3]):
        numbers.copy_(torch.tensor(adapters))
        x.normal_()
        expected = work()
        replay()
        assert torch.equal(output, expected)
        plain = linear(x) + linear.gelu_tanh(x)
        assert [torch.equal(*pair) for pair in zip(output, plain, strict=True)] == [each == 0 for each in adapters]
