"""`Residual`: the residual stream between the blocks of a model. Imports no torch, as the models' files."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import torch


class Residual(NamedTuple):
    """The residual stream [S, H]. Its last addend may not have been added yet, so that a norm adds it on the way."""

    hidden: torch.Tensor
    addend: torch.Tensor | None = None
    """[S, H]."""
    bias: torch.Tensor | None = None
    """[H], added to the addend."""

    def total(self) -> torch.Tensor:
        """Return [S, H] with the addend."""
        if self.addend is None:
            return self.hidden
        return self.hidden + (self.addend if self.bias is None else self.addend + self.bias)
