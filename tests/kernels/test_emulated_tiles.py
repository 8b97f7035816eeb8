"""The emulation of AMX tiles refuses what a processor would refuse, and computes what the manual says."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from orca_kernels.cpu.library import usable_targets
from orca_kernels.cpu.targets import AVX2, processor_flags
from support.emulated_tiles import HEADER, compile_with

SOURCE = """
struct Shapes {
  unsigned char palette = 1, start_row = 0, reserved[14] = {};
  unsigned short row_bytes[16] = {12, 8, 12};
  unsigned char rows[16] = {3, 3, 2};
};
#define FUNCTION extern "C" __attribute__((visibility("default"))) void

FUNCTION multiply(const void *x, const void *weights, void *y, int times) {
  const Shapes shapes;
  _tile_loadconfig(&shapes);
  _tile_zero(0);
  _tile_loadd(1, x, 8);
  _tile_loadd(2, weights, 16);
  for (int i = 0; i < times; ++i) _tile_dpbf16ps(0, 1, 2);
  _tile_stored(0, y, 16);
  _tile_release();
}

template <typename Product>
void add_products(const void *x, const void *weights, void *y, int times, Product product) {
  const Shapes shapes;
  _tile_loadconfig(&shapes);
  _tile_loadd(0, y, 16);
  _tile_loadd(1, x, 8);
  _tile_loadd(2, weights, 16);
  for (int i = 0; i < times; ++i) product();
  _tile_stored(0, y, 16);
  _tile_release();
}

FUNCTION multiply_bytes(const void *x, const void *weights, void *y, int times) {
  add_products(x, weights, y, times, [] { _tile_dpbsud(0, 1, 2); });
}

FUNCTION multiply_signed_bytes(const void *x, const void *weights, void *y, int times) {
  add_products(x, weights, y, times, [] { _tile_dpbssd(0, 1, 2); });
}

FUNCTION fault(int kind) {
  Shapes shapes;
  if (kind == 0) shapes.rows[3] = 17, shapes.row_bytes[3] = 4;
  if (kind == 1) shapes.row_bytes[3] = 68, shapes.rows[3] = 1;
  if (kind == 2) shapes.rows[3] = 1;
  if (kind == 3) shapes.palette = 2;
  if (kind == 4) shapes.reserved[5] = 1;
  if (kind == 5) shapes.rows[0] = 2;
  if (kind == 6) shapes.rows[2] = 3;
  if (kind == 7) shapes.row_bytes[0] = 16;
  if (kind != 8) _tile_loadconfig(&shapes);
  if (kind == 9) _tile_release();
  if (kind == 10) _tile_zero(3);
  if (kind == 11) _tile_dpbf16ps(0, 1, 1);
  if (kind == 12) _tile_dpbsud(0, 1, 1);
  if (kind == 13) _tile_dpbssd(0, 1, 1);
  _tile_dpbf16ps(0, 1, 2);
}
"""
CALL = "import ctypes, sys; ctypes.CDLL(sys.argv[1]).fault(int(sys.argv[2]))"
FAULTS = (
    "LDTILECFG: more than 16 rows",
    "LDTILECFG: more than 64 bytes per row",
    "LDTILECFG: rows without bytes, or bytes without rows",
    "LDTILECFG: palette other than 0 and 1",
    "LDTILECFG: reserved byte other than 0",
    "TDPBF16PS: sums and left operand differ in rows",
    "TDPBF16PS: words of the left operand and rows of the right one differ",
    "TDPBF16PS: sums and right operand differ in bytes per row",
    "TDPBF16PS: no configuration",
    "TDPBF16PS: no configuration",
    "TILEZERO: a tile without a shape",
    "TDPBF16PS: a tile is more than one operand",
    "TDPBSUD: a tile is more than one operand",
    "TDPBSSD: a tile is more than one operand",
)
pytestmark = pytest.mark.skipif(not processor_flags() >= AVX2, reason="needs fused multiplication and addition")


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """Return the path of SOURCE's library."""
    folder = tmp_path_factory.mktemp("tiles")
    (folder / "tiles.cpp").write_text(SOURCE)
    level = usable_targets(processor_flags())[0].level
    compile_with(HEADER, folder / "tiles.cpp", level, folder / "tiles.so")
    return folder / "tiles.so"


@pytest.mark.parametrize(("kind", "message"), list(enumerate(FAULTS)))
def test_a_fault_ends_the_process_with_its_rule(library, kind, message):
    done = subprocess.run([sys.executable, "-c", CALL, library, str(kind)], capture_output=True, text=True, check=False)
    assert done.returncode < 0
    assert done.stderr == f"emulated tiles: {message}\n"


def test_the_sum_of_even_and_of_odd_products_is_added(library):
    """Three rows of two pairs, and two rows of three pairs with a stride of four."""
    import ctypes

    def product(x: torch.Tensor, weights: torch.Tensor, times: int = 1) -> torch.Tensor:
        y = torch.full((3, 4), 9.0)
        tile = [tensor.bfloat16().contiguous() for tensor in (x, weights)]
        ctypes.CDLL(str(library)).multiply(*(ctypes.c_void_p(t.data_ptr()) for t in (*tile, y)), times)
        assert (y[:, 3] == 9).all(), "bytes beyond a row stay"
        return y[:, :3]

    x, weights = torch.arange(12.0).reshape(3, 4), torch.arange(16.0).reshape(2, 8)
    pairs = weights.reshape(2, 4, 2)[:, :3]  # [pair, column, even or odd]
    expected = torch.einsum("rpe,pce->rc", x.reshape(3, 2, 2), pairs)
    assert torch.equal(product(x, weights), expected)
    assert torch.equal(product(x, weights, 3), 3 * expected)
    # Even: 2^24 + 1 is rounded to 2^24. Odd: 1 + 1. In one chain each 1 would be lost.
    x, weights = torch.ones(3, 4), torch.ones(2, 8)
    x[:, 0] = 2.0**24
    assert (product(x, weights) == 2.0**24 + 2).all()
    # Subnormal: as an operand (2^-130 x 2^100), and as a product (2^-70 x 2^-70).
    for left, right in ((2.0**-130, 2.0**100), (2.0**-70, 2.0**-70)):
        assert (product(torch.full((3, 4), left), torch.full((2, 8), right)) == 0).all()


@pytest.mark.parametrize(
    ("function", "dtype"), [("multiply_bytes", torch.uint8), ("multiply_signed_bytes", torch.int8)], ids=str
)
def test_signed_bytes_are_multiplied_by_unsigned_or_signed_ones(library, function, dtype):
    """Three rows of two words, and two rows of three words with a stride of four; sums wrap at 32 bits."""
    import ctypes

    x = torch.randint(-128, 128, (3, 8), dtype=torch.int8)
    bounds = torch.iinfo(dtype)
    weights = torch.randint(bounds.min, bounds.max + 1, (2, 16), dtype=dtype)
    y = torch.full((3, 4), 2**31 - 1, dtype=torch.int32)
    pointers = (ctypes.c_void_p(tensor.data_ptr()) for tensor in (x, weights, y))
    getattr(ctypes.CDLL(str(library)), function)(*pointers, 3)
    words = weights.long().reshape(2, 4, 4)[:, :3]  # [word, column, byte]
    sums = 2**31 - 1 + 3 * torch.einsum("rwb,wcb->rc", x.long().reshape(3, 2, 4), words)
    assert torch.equal(y[:, :3], sums.to(torch.int32))
    assert (y[:, 3] == 2**31 - 1).all(), "bytes beyond a row stay"
