"""The machine code: attention copies during products, rows are read 16 bytes at a time, nothing spills.

Disassembled with nvdisasm from PyPI, without a GPU.
"""

from __future__ import annotations

import pytest
import torch
from orca_kernels.cuda.modules import ROWS, TENSOR_CORES, Kernel
from orca_kernels.cuda.work import PLAN
from support.cubins import instructions, subroutines
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


NORMS = ("layer_norm", "rms_norm", "rms_norm_plus_one")
ON_ROWS = [Kernel(ROWS, f"orca_{name}", torch.bfloat16) for name in (*NORMS, "silu_and_multiply", "rotate")]
STORES = [
    Kernel(source, name, dtype, 128)
    for source, dtype in ((TENSOR_CORES, torch.bfloat16), ("attention.cu", torch.float32))
    for name in ("orca_store", "orca_rotate_and_store")
]
OTHERS = [
    Kernel("merge.cu", "orca_merge", torch.bfloat16, 128),
    Kernel("attention.cu", "orca_attention", torch.float32, 128),
    PLAN,
]


def name_of(kernel: Kernel) -> str:
    return f"{kernel.name} {kernel.dtype}"


@pytest.mark.parametrize("architecture", one_short(["sm_90", "sm_80", "sm_100"]))
@pytest.mark.parametrize("kernel", ON_ROWS, ids=lambda kernel: kernel.name.removeprefix("orca_"))
def test_rows_are_read_and_written_16_bytes_at_a_time(kernel, architecture):
    code = instructions(kernel, architecture)
    assert any(each.startswith("LDG.E.128") for each in code)
    assert "STG.E.128" in code


@pytest.mark.parametrize("architecture", one_short(["sm_90", "sm_80", "sm_100"]))
@pytest.mark.parametrize("kernel", STORES, ids=name_of)
def test_heads_are_read_and_written_as_wide_as_their_places_allow(kernel, architecture):
    """16 bytes at a time but for the slot, and queries are written so. In the pools neighbours have other tokens."""
    code = instructions(kernel, architecture)
    assert {each for each in code if each.startswith("LDG")} == {"LDG.E.64", "LDG.E.128"}
    assert code.count("LDG.E.64") == 1
    if kernel.name == "orca_rotate_and_store":
        assert code.count("STG.E.128") >= 2
    if kernel.dtype != torch.float32:
        assert code.count("STG.E") == 2 * 4, "two elements of a key"
        assert code.count("STG.E.U16") == 2 * 8, "an element of a value"


@pytest.mark.parametrize("architecture", one_short(["sm_90", "sm_80", "sm_100"]))
@pytest.mark.parametrize("kernel", [*ON_ROWS, *STORES, *OTHERS], ids=name_of)
def test_nothing_is_spilled_or_divided_in_64_bits(kernel, architecture):
    """A division by a number of 64 bits that is not constant is a subroutine of a hundred instructions."""
    assert not [each for each in instructions(kernel, architecture) if each.startswith(("LDL", "STL"))]
    assert not {each for each in subroutines(kernel, architecture) if "64" in each}
