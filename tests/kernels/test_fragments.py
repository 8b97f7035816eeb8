"""The layout of tensor-core operands, against tables from CUTLASS rather than from the emulation's author.

CuTe writes a layout as a shape and strides: thread t and value v have the element at the inner product of their digits
and the strides, in a matrix whose first index is the fast one. Copied from NVIDIA/cutlass, include/cute/atom:
mma_traits_sm80.hpp, `MMA_Traits<SM80_16x8x16_F32BF16BF16F32_TN>` (A is [M, K], B [N, K], C [M, N]), and
copy_traits_sm75.hpp, `Copy_Traits<SM75_U32x4_LDSM_N>` (bits of four matrices 8 x 8). The PTX ISA has the same as
figures: "Matrix Fragments for mma.m16n8k16 with floating point type", and "ldmatrix".
"""

from __future__ import annotations

import ctypes
import hashlib
import subprocess

import pytest
import torch
from orca_kernels.cuda.modules import TENSOR_CORES, Kernel, program
from support.cuda_emulator import COMMAND, HEADER, EmulatedLauncher
from support.once import cache_folder, once

Digits = tuple[tuple[int, ...], tuple[int, ...]]
"""Shape and strides of a thread's or a value's index."""

A: tuple[Digits, Digits] = (((4, 8), (32, 1)), ((2, 2, 2), (16, 8, 128)))
B: tuple[Digits, Digits] = (((4, 8), (16, 1)), ((2, 2), (8, 64)))
C: tuple[Digits, Digits] = (((4, 8), (32, 1)), ((2, 2), (16, 8)))
LDMATRIX_X4: tuple[Digits, Digits] = (((32,), (32,)), ((32, 4), (1, 1024)))
"""In bits: the row of a matrix has 8 elements of 16 bits, and follows the row before."""
M, N, K = 16, 8, 16

WRAPPER = """
extern "C" __global__ void orca_product(const unsigned *a, const unsigned *b, float *c) {
  const int lane = threadIdx.x;
  const unsigned first[4] = {a[lane * 4], a[lane * 4 + 1], a[lane * 4 + 2], a[lane * 4 + 3]};
  float sums[4] = {};
  multiply(sums, first, {b[lane * 2], b[lane * 2 + 1]});
  for (int i = 0; i < 4; ++i) c[lane * 4 + i] = sums[i];
}
ORCA_EMULATE(orca_product)
"""
"""Calls the product as attention does."""


def inner(index: int, digits: Digits) -> int:
    """Return the inner product of an index's digits and the strides."""
    place = 0
    for size, stride in zip(*digits, strict=True):
        place += index % size * stride
        index //= size
    return place


def element(layout: tuple[Digits, Digits], thread: int, value: int, rows: int) -> tuple[int, int]:
    """Return the row and column of a thread's value in a matrix of `rows` rows."""
    place = inner(thread, layout[0]) + inner(value, layout[1])
    return place % rows, place // rows


def fragments(matrix: torch.Tensor, layout: tuple[Digits, Digits], values: int) -> torch.Tensor:
    """Return what each of the 32 threads holds of a matrix: [32, values]."""
    places = [[element(layout, thread, value, len(matrix)) for value in range(values)] for thread in range(32)]
    rows, columns = torch.tensor(places).unbind(-1)
    return matrix[rows, columns].contiguous()


@pytest.fixture(scope="module")
def product() -> ctypes.CDLL:
    """Return the emulated product of a warp, for bfloat16."""
    kernel = Kernel(TENSOR_CORES, "orca_attention", torch.bfloat16, 16)
    text = f"{HEADER.read_text()}\n{program('tensor_core.cuh')}\n{WRAPPER}".replace("#pragma once", "")
    command = [*COMMAND, *kernel.macros, "-x", "c++", "-", "-o"]
    digest = hashlib.sha256("\n".join([*command, text]).encode()).hexdigest()[:16]
    path = once(
        cache_folder() / "emulated-kernels" / f"fragments-{digest}.so",
        lambda part: subprocess.run([*command, part], input=text, text=True, check=True, timeout=120) and None,
    )
    return ctypes.CDLL(str(path))


@pytest.mark.parametrize("layout", [A, B, C], ids=["A", "B", "C"])
def test_every_element_belongs_to_one_thread(layout):
    rows, columns = {A: (M, K), B: (N, K), C: (M, N)}[layout]
    values = rows * columns // 32
    found = {element(layout, thread, value, rows) for thread in range(32) for value in range(values)}
    assert found == {(row, column) for row in range(rows) for column in range(columns)}


def test_the_emulated_product_has_the_published_layout(product):
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(rows, K, generator=generator).bfloat16() for rows in (M, N))
    first, second, sums = fragments(a, A, 8), fragments(b, B, 4), torch.zeros(32, 4)
    pointers = (ctypes.c_void_p * 3)()
    held = [ctypes.c_void_p(tensor.data_ptr()) for tensor in (first, second, sums)]
    pointers[:] = [ctypes.addressof(pointer) for pointer in held]
    product.emulate_orca_product.restype = ctypes.c_char_p
    assert product.emulate_orca_product(1, 1, 1, 32, pointers) is None
    torch.testing.assert_close(sums, fragments(a.float() @ b.float().t(), C, 4))


def test_ldmatrix_gives_each_thread_the_parts_of_a_first_factor():
    """The four 8 x 8 matrices are the quarters of A in the order of its values: rows 0 to 7, 8 to 15, then columns."""
    for thread in range(32):
        for value in range(8):
            bit = inner(thread, LDMATRIX_X4[0]) + inner(value % 2 * 16 + value // 2 * 32, LDMATRIX_X4[1])
            quarter, place = bit // 1024, bit % 1024 // 16
            row, column = place // 8 + quarter % 2 * 8, place % 8 + quarter // 2 * 8
            assert (row, column) == element(A, thread, value, M)


def test_the_pools_have_the_published_layout_of_second_factors():
    """A lane's 16 bytes are two second factors: of keys 16 of D by slots, of values 16 slots by elements of D."""
    slots, num_slots, head_dim = torch.arange(16, 32), 16, 80
    rows = torch.arange(2 * num_slots * head_dim, dtype=torch.int16).view(2, num_slots, 1, head_dim)
    key, value = (each.view(torch.bfloat16).contiguous() for each in rows)
    pools = [torch.zeros(2, head_dim * num_slots, dtype=torch.bfloat16) for _ in range(2)]
    kernel = Kernel(TENSOR_CORES, "orca_store", torch.bfloat16, head_dim)
    numbers = (ctypes.c_int(1), ctypes.c_int(head_dim), ctypes.c_int(head_dim))
    EmulatedLauncher().launch(kernel, (num_slots, 1, 1), 256, (key, value, *pools, slots, *numbers))
    keys, values = (pool[1].view(torch.int16).view(head_dim // 16, 32, 2, 4) for pool in pools)
    for pair in range(head_dim // 16):
        for which in range(2):
            columns, eight = slice(pair * 16, pair * 16 + 16), slice(which * 8, which * 8 + 8)
            assert torch.equal(keys[pair, :, which], fragments(rows[0, eight, 0, columns], B, 4))
            of_values = rows[1, :, 0, columns][:, eight].t()
            assert torch.equal(values[pair, :, which], fragments(of_values, B, 4))
