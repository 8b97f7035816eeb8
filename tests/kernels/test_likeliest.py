"""The largest output of each row, without all outputs: on every target the same as of all outputs, bit for bit."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from orca_kernels.cpu.kernels import MOST_ROWS, CpuKernels
from orca_kernels.cpu.likeliest import PAUSE, CopiedLikeliest
from orca_kernels.interface import LinearMap
from orca_kernels.reference import ReferenceKernels
from support.integer_products import every_arrangement

MOST = max(MOST_ROWS.values())
"""Rows that fill several blocks."""
every_library = pytest.mark.parametrize(("target", "instructions"), every_arrangement(), scope="module")


@pytest.fixture(scope="module", params=[torch.float32, torch.bfloat16], ids=str)
def dtype(request) -> torch.dtype:
    return request.param


@pytest.fixture(scope="module")
def kernels(library, dtype) -> CpuKernels:
    kernels = CpuKernels(library, dtype)
    if not kernels.fixed_order:
        pytest.skip("oneDNN computes the products of this target")
    return kernels


def prepared(kernels: CpuKernels, weight: torch.Tensor) -> tuple[LinearMap, CopiedLikeliest]:
    """Return the map of a weight, and the search for its largest outputs, which never gives up."""
    linear = kernels.linear(weight.clone(), None)
    likeliest = kernels.likeliest(weight, linear)
    assert isinstance(likeliest, CopiedLikeliest)
    likeliest.part, likeliest.most_rows = 1, MOST
    return linear, likeliest


def largest(linear: LinearMap, x: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(linear(x).float().numpy().argmax(axis=-1))


@every_library
@pytest.mark.parametrize(("inputs", "outputs"), [(2, 1), (6, 5), (64, 32), (130, 70), (300, 211), (770, 999)])
def test_the_same_outputs_as_of_all(kernels, dtype, inputs, outputs):
    """Incomplete words, panels and blocks of rows; outputs that differ by less than the copy tells, and equal ones."""
    generator = torch.Generator().manual_seed(inputs)
    weight = torch.randn(outputs, inputs, generator=generator)
    near = weight[:1] + torch.randn(outputs, inputs, generator=generator) * 1e-3
    equal = weight[torch.randint(0, max(1, outputs // 9), (outputs,), generator=generator)]
    outlying = weight * torch.where(torch.rand(1, inputs, generator=generator) < 0.05, 100.0, 1.0)
    for case in (weight, near, equal, outlying, -weight.abs()):
        linear, likeliest = prepared(kernels, case.to(dtype))
        for num_rows in (1, 2, 7, MOST):
            x = torch.randn(num_rows, inputs, generator=generator)
            x[::2] = x[::2].abs() + 3  # outputs with much in common
            x[::3, 0] *= 300
            x = x.to(dtype)
            assert torch.equal(likeliest(x), largest(linear, x))


@every_library
@settings(max_examples=settings.default.max_examples // 5)  # the emulation of Arm takes long
@given(
    outputs=st.integers(1, 130),
    inputs=st.integers(1, 40).map(lambda half: 2 * half),
    rows=st.integers(1, 8),
    weights=st.sampled_from([1e-26, 1e-20, 1e-3, 1.0, 1e4, 1e14]),
    numbers=st.sampled_from([1e-38, 1e-20, 1.0, 1e14]),
    distinct=st.integers(1, 6),
    seed=st.integers(0, 10_000),
)
def test_any_sizes_of_numbers(kernels, dtype, outputs, inputs, rows, weights, numbers, distinct, seed):
    """Numbers of few values make many outputs equal; tiny ones are lost in the copy, and then all are computed."""
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randint(-distinct, distinct + 1, (outputs, inputs), generator=generator) * weights
    linear, likeliest = prepared(kernels, weight.to(dtype))
    x = (torch.randint(-distinct, distinct + 1, (rows, inputs), generator=generator) * numbers).to(dtype)
    found = likeliest(x)
    assert found is None or torch.equal(found, largest(linear, x))
    if weights == numbers == 1.0:
        assert found is not None


@every_library
def test_outputs_whose_copies_are_the_same(kernels, dtype):
    """In panels far from each other; a copy's smallest difference is 0.5 / 127."""
    weight = torch.zeros(2000, 64)
    weight[:, 0] = 0.5
    weight[7, 5], weight[1999, 5] = 0.0010, 0.0015
    linear, likeliest = prepared(kernels, weight.to(dtype))
    x = torch.zeros(2, 64, dtype=dtype)
    x[0, 5], x[1, 5] = 1, -1
    assert likeliest(x).tolist() == largest(linear, x).tolist() == [1999, 0]


@pytest.mark.parametrize(("target", "instructions"), [(None, "")], scope="module")
class TestOnThisProcessor:
    """What does not depend on the instructions."""

    def test_numbers_beyond_any_bound_are_left_to_the_product(self, kernels, dtype):
        weight = torch.randn(100, 64).to(dtype)
        _, likeliest = prepared(kernels, weight)
        for number in (torch.nan, torch.inf, 1e30):
            x = torch.randn(3, 64).to(dtype)
            x[1, 9] = number
            assert likeliest(x) is None
            likeliest.pause = 0
            wrong = weight.clone()
            wrong[50, 9] = number
            assert kernels.likeliest(wrong, kernels.linear(wrong.clone(), None)) is None

    def test_rows_that_the_copy_does_not_decide_pause_the_search(self, kernels, dtype):
        """Equal outputs: all panels may have the largest one. Another row is decided at once after the pause."""
        weight = torch.randn(1, 64).expand(2000, 64).contiguous()
        weight[1000:] = torch.randn(1000, 64) * 0.1
        linear = kernels.linear(weight.to(dtype), None)
        likeliest = kernels.likeliest(weight.to(dtype), linear)
        hard, easy = weight[:1].to(dtype), weight[1500:1501].to(dtype) - weight[:1].to(dtype)
        assert likeliest(hard) is None
        assert [likeliest(easy) for _ in range(PAUSE)] == [None] * PAUSE
        assert likeliest(easy).tolist() == largest(linear, easy).tolist()

    def test_rows_that_need_different_panels_need_few_together(self, kernels, dtype):
        """Each row leaves a group of equal outputs, a tenth of all: of a block of rows too many."""
        groups = torch.eye(10, 64).repeat_interleave(640, dim=0)
        linear = kernels.linear(groups.to(dtype), None)
        likeliest = kernels.likeliest(groups.to(dtype), linear)
        alone, same, different = (torch.eye(10, 64)[rows].to(dtype) for rows in ([0], [7] * 5, range(5)))
        assert likeliest(alone).tolist() == [0]
        assert likeliest(same).tolist() == [7 * 640] * 5
        assert likeliest(different) is None

    def test_more_rows_than_pay_are_left_to_the_product(self, kernels, dtype):
        _, likeliest = prepared(kernels, torch.randn(100, 64).to(dtype))
        likeliest.most_rows = rows = MOST_ROWS[dtype]
        assert likeliest(torch.randn(rows, 64).to(dtype)) is not None
        assert likeliest(torch.randn(rows + 1, 64).to(dtype)) is None


def test_the_reference_computes_all_outputs():
    weight = torch.randn(5, 3)
    kernels = ReferenceKernels()
    assert kernels.likeliest(weight, kernels.linear(weight, None)) is None
