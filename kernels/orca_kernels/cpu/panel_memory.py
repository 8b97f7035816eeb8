"""`PanelMemory`: memory of the panels of many weights, in large pieces that Linux can back by huge pages as a whole.

A weight alone would end, or lie entirely, in pages of 4 KB, whose addresses take the processor longer to translate than
the data takes to arrive. torch asks for huge pages if THP_MEM_ALLOC_ENABLE is set, as in a rank.
"""

from __future__ import annotations

import torch

PIECE = 64 << 20
"""Bytes of a piece. What is left of one is never touched, so that Linux gives it no memory."""
LINE = 64
"""Panels begin at cache lines."""


class PanelMemory:
    """Gives out parts of pieces; a piece is freed with the last of its parts."""

    def __init__(self) -> None:
        self._left = torch.empty(0, dtype=torch.uint8)

    def empty(self, count: int, dtype: torch.dtype) -> torch.Tensor:
        """Return an uninitialised tensor [count]."""
        size = count * dtype.itemsize
        if size > PIECE:
            return torch.empty(count, dtype=dtype)
        if size > len(self._left):
            self._left = torch.empty(PIECE, dtype=torch.uint8)
        part, self._left = self._left[:size], self._left[-(-size // LINE) * LINE :]
        return part.view(dtype)
