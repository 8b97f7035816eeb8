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

Factors = tuple[torch.Tensor, torch.Tensor]
"""A [rank, inputs] and B [outputs, rank]."""
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
"""Of GeLU, and of products that are computed twice."""


@pytest.fixture(params=[torch.float32, torch.bfloat16], ids=str)
def dtype(request) -> torch.dtype:
    return request.param


@pytest.fixture(params=["reference", *cpu_target_params()])
def kernels(request, dtype) -> Kernels:
    return ReferenceKernels() if request.param == "reference" else CpuKernels(load(request.param), dtype)


def factors(dtype: torch.dtype) -> dict[int, Factors]:
    return {
        adapter: (torch.randn(rank, INPUTS).to(dtype) / 7, torch.randn(OUTPUTS, rank).to(dtype))
        for adapter, rank in RANKS.items()
    }


def filled(kernels: Kernels, of: dict[int, Factors]) -> LowRank:
    low_rank = kernels.low_rank(INPUTS)
    for adapter, (down, up) in of.items():
        low_rank.put(adapter, down.clone(), up.clone())
    assert len(low_rank) == len(of)
    return low_rank


def rows(adapters: list[int]) -> AdapterRows:
    numbers = torch.tensor(adapters)
    return AdapterRows(numbers, [(each, (numbers == each).nonzero().flatten()) for each in set(adapters) - {0}])


def check_row(found: torch.Tensor, activated: torch.Tensor, y: torch.Tensor, x: torch.Tensor, of: Factors) -> None:
    """Compare y + B (A x) and its GeLU with float64: A x, B (A x) and the sum may be rounded, sums are of float32.

    The largest error of such sums: Higham, Accuracy and Stability of Numerical Algorithms, section 3.1.
    """
    unit, unit_of_sums = (torch.finfo(each).eps / 2 for each in (x.dtype, torch.float32))
    (down, up), y, x = (each.double() for each in of), y.double(), x.double()
    inner = down @ x
    inner_error = unit * inner.abs() + len(x) * unit_of_sums * (down.abs() @ x.abs())
    update = up @ inner
    update_error = unit * update.abs() + up.abs() @ (inner_error + len(inner) * unit_of_sums * inner.abs())
    wanted = y + update
    error = update_error + unit * wanted.abs()
    assert ((found.double() - wanted).abs() <= 1.02 * error).all()  # with products of errors
    gelu = functional.gelu(found.double(), approximate="tanh")
    torch.testing.assert_close(activated.double(), gelu, **TOLERANCE[found.dtype])


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
        check_row(found[row], found_activated[row], y[row], x[row], of[adapter])
    again = y.clone()
    low_rank.add(x, again, rows(adapters))
    assert torch.equal(again, found)


@pytest.mark.parametrize("adapters", ARRANGEMENTS, ids=str)
def test_a_row_is_the_same_alone_and_in_company(kernels, dtype, adapters):
    """Bit for bit; right within the roundings for kernels whose order of sums depends on the number of rows."""
    of = factors(dtype)
    low_rank, x = filled(kernels, of), torch.randn(len(adapters), INPUTS).to(dtype)
    y, activated = torch.randn(2, len(adapters), OUTPUTS).to(dtype)
    together, together_activated = y.clone(), activated.clone()
    low_rank.add(x, together, rows(adapters), together_activated)
    for row, adapter in enumerate(adapters):
        one, alone, alone_activated = slice(row, row + 1), y[row : row + 1].clone(), activated[row : row + 1].clone()
        low_rank.add(x[one], alone, rows([adapter]), alone_activated)
        if kernels.fixed_order or adapter not in of:
            assert torch.equal(alone, together[one])
            assert torch.equal(alone_activated, together_activated[one])
        else:
            check_row(alone[0], alone_activated[0], y[row], x[row], of[adapter])


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
