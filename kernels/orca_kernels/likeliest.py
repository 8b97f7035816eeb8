"""`Likeliest`: the largest output of each row of a linear map, as greedy sampling needs of a head."""

from __future__ import annotations

from typing import Protocol

import torch


class Likeliest(Protocol):
    """The largest output of each row of a linear map without bias, found without computing all outputs."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor | None:
        """Return the outputs int64 [S] that are largest for x [S, inputs], of equal ones the first.

        They are those of all outputs, bit for bit. None if all outputs must be computed.
        """
