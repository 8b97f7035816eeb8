"""`LowRank`: the products that adapters (LoRA) add to a linear map of a model. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    import torch


class AdapterRows(NamedTuple):
    """The adapters (LoRA) that the rows of an input use."""

    adapters: torch.Tensor
    """[S] int64 on the device: number of each row's adapter, 0 for none."""
    groups: Sequence[tuple[int, torch.Tensor]] | None
    """Number of each adapter that has rows, and these rows, int64 on the device; None in a recording, whose replays
    have other rows."""


class LowRank(Protocol):
    """The products B A x of adapters that change one linear map, by the adapter's number."""

    recordable: bool
    """False if `add` reads `AdapterRows.groups`, so that a replay would repeat those of the recording."""

    def __len__(self) -> int:
        """Return the number of adapters."""

    def put(self, adapter: int, down: torch.Tensor, up: torch.Tensor) -> None:
        """Add an adapter by its factors A [rank, inputs] and B [outputs, rank]. Recordings become invalid."""

    def remove(self, adapter: int) -> None:
        """Free an adapter, if there is one with this number. Recordings become invalid."""

    def add(self, x: torch.Tensor, y: torch.Tensor, rows: AdapterRows, activated: torch.Tensor | None = None) -> None:
        """Add the products of the rows x [S, inputs] to y [S, outputs].

        The rows of `activated` [S, outputs] whose adapter changes the map become GeLU (tanh approximation) of y's.
        """
