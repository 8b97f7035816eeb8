"""Keys and values as integers of eight bits: one float32 scale per row, which is one token of one K/V head.

value = number x scale with numbers from -127 to 127: the value with the largest magnitude has the number 127 or -127.
A row's numbers and scale depend on the row alone, so that they are the same in any iteration. The C++ stores the same
numbers bit for bit (`store_kv_int8` of cpu/kv_store.h).
"""

from __future__ import annotations

import torch

LARGEST = 127.0
SMALLEST_SCALE = torch.finfo(torch.float32).tiny
"""Rows with a smaller scale, as rows of zeros, have scale 0: subnormal scales have too few bits."""


def quantize_rows(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return numbers [..., D] int8 and scales [...] float32 of rows [..., D], rounded to nearest, ties to even.

    A row with an infinity or NaN has scale NaN, and so is NaN as a whole.
    """
    wide = rows.float()
    scales = wide.abs().amax(-1) / LARGEST
    scales = scales.masked_fill(~scales.isfinite(), float("nan")).masked_fill(scales < SMALLEST_SCALE, 0.0)
    numbers = (wide / scales.unsqueeze(-1)).round()
    usable = (scales > 0).unsqueeze(-1)
    return numbers.where(usable, torch.zeros_like(numbers)).to(torch.int8), scales


def dequantize_rows(numbers: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Return numbers [..., D] x scales [...] in float32."""
    return numbers * scales.unsqueeze(-1)
