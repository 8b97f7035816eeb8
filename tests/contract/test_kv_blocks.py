"""The size of a K/V block: C++ and CUDA cannot import the number, and have the same."""

from __future__ import annotations

from pathlib import Path

import pytest
from orca_contract.kv_blocks import BLOCK_SIZE

KERNELS = Path(__file__).parents[2] / "kernels" / "orca_kernels"


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("cuda/work.cuh", f"constexpr int kBlock = {BLOCK_SIZE};"),
        ("cpu/lanes.h", f"constexpr int kLanes = {BLOCK_SIZE};"),
        ("cpu/attention.h", "constexpr int kBlock = kLanes;"),
    ],
)
def test_the_kernels_have_blocks_of_the_same_size(source, line):
    assert line in (KERNELS / source).read_text()
