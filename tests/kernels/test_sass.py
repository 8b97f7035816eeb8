"""The machine code: attention copies during products without spilling, and rows are read 16 bytes at a time.

Disassembled with nvdisasm from PyPI, without a GPU.
"""

from __future__ import annotations

import pytest
import torch
from orca_kernels.cuda.modules import ROWS, TENSOR_CORES, Kernel
from support.cubins import instructions
from support.variants import one_short

COPY, PRODUCT, READ = "LDGSTS.E.BYPASS.128", "HMMA.16816.F32.BF16", "LDS.128"
IN_FLIGHT = {64: 12, 80: 15, 128: 16, 256: 16}
"""Copies of 16 bytes that a thread starts before the first product, by D: two or three stages."""


@pytest.mark.parametrize("architecture", one_short(["sm_90", "sm_80", "sm_100"]))
@pytest.mark.parametrize("head_dim", one_short(IN_FLIGHT, 128))
def test_copies_of_16_bytes_are_in_flight_before_the_first_product(head_dim, architecture):
    code = instructions(Kernel(TENSOR_CORES, "orca_attention", torch.bfloat16, head_dim), architecture)
    first, last = code.index(PRODUCT), len(code) - code[::-1].index(PRODUCT)
    assert code[:first].count(COPY) >= IN_FLIGHT[head_dim]
    assert code.count(READ) * 2 == code.count(PRODUCT), "a read has the factors of two products"
    # The next stage's copies are started beside a stage's products, for either kind of tile.
    assert code[first:last].count(COPY) >= 2 * IN_FLIGHT[head_dim] // 3
    whole = architecture != "sm_100"  # where the compiler keeps an address of the outer loop in local memory
    inner = code if whole else code[code.index(COPY) : last]
    assert not [name for name in inner if name.startswith(("LDL", "STL"))], "no register is spilled"


@pytest.mark.parametrize("architecture", one_short(["sm_90", "sm_80", "sm_100"]))
@pytest.mark.parametrize("name", ["layer_norm", "rms_norm", "silu_and_multiply", "rotate"])
def test_rows_are_read_and_written_16_bytes_at_a_time(name, architecture):
    code = instructions(Kernel(ROWS, f"orca_{name}", torch.bfloat16), architecture)
    assert any(each.startswith("LDG.E.128") for each in code)
    assert "STG.E.128" in code
