"""tools/cuda_resources.py: needs of kernels from cubins, occupancy, and the page of the documentation."""

from __future__ import annotations

import pytest
from cuda_resources import PAGE, SHARED, Resources, blocks_per_multiprocessor, cubin, launches, page, resources
from orca_kernels.cuda.modules import Kernel, resident_blocks
from orca_kernels.cuda.work import PLAN
from support.cubins import cubin_bytes
from support.variants import one_short


@pytest.mark.parametrize(
    ("needs", "threads", "architecture", "blocks"),
    [
        (Resources(168, 0, 0), 128, "sm_80", 3),  # registers: 12 warps of 5,376
        (Resources(169, 0, 0), 128, "sm_80", 2),
        (Resources(32, 48 << 10, 0), 128, "sm_80", 3),  # shared memory: 49 KiB each, one of them reserved
        (Resources(32, 48 << 10, 0), 128, "sm_90", 4),
        (Resources(32, 0, 0), 256, "sm_90", 8),  # warps
        (Resources(16, 0, 0), 32, "sm_100", 32),  # blocks
    ],
)
def test_thread_blocks_of_a_multiprocessor(needs, threads, architecture, blocks):
    """As NVIDIA's occupancy calculator has them."""
    assert blocks_per_multiprocessor(needs, threads, architecture) == blocks


@pytest.mark.parametrize("architecture", SHARED)
def test_needs_are_read_from_a_cubin(architecture):
    (name,) = found = resources(cubin_bytes(PLAN, architecture), architecture)
    assert name == "orca_plan"
    assert 16 <= found[name].registers <= 64
    assert found[name].shared == 2 * 256 * 4, "two arrays of sums"
    assert found[name].stack == 0


def test_an_error_of_the_compiler_is_reported():
    with pytest.raises(RuntimeError, match="ORCA_HEAD_DIM"):
        cubin(Kernel("merge.cu", "orca_merge", PLAN.dtype), "sm_90")


@pytest.mark.parametrize("architecture", one_short(SHARED, "sm_90"))
def test_a_multiprocessor_holds_the_thread_blocks_that_a_decode_graph_launches(architecture):
    for kernel, threads in launches():
        if kernel.name == "orca_attention" and kernel.head_dim is not None:
            needs = resources(cubin_bytes(kernel, architecture), architecture)[kernel.name]
            assert blocks_per_multiprocessor(needs, threads, architecture) >= resident_blocks(kernel.head_dim)


@pytest.mark.long
def test_the_page_is_up_to_date():
    assert PAGE.read_text() == page(cubin_bytes), "run python tools/cuda_resources.py"
