"""`PanelLowRank`: low-rank products of adapters by the library, one call for all adapters (cpu/low_rank.h)."""

from __future__ import annotations

import torch

from orca_kernels.cpu.calls import Function
from orca_kernels.cpu.panel_linear import WORD_BYTES, panels_of
from orca_kernels.low_rank import AdapterRows


class PanelLowRank:
    """Implements `orca_kernels.low_rank.LowRank` over functions of one element type."""

    recordable = True

    def __init__(self, product: Function, pack: Function) -> None:
        self._product = product
        self._pack = pack
        self._panels: dict[int, tuple[torch.Tensor, torch.Tensor, int]] = {}
        """Panels of A and B, and the rank, by adapter."""
        self._factors = torch.empty((0, 4), dtype=torch.int64)
        """`LowRankFactors` of the library."""

    def __len__(self) -> int:
        """See LowRank."""
        return len(self._panels)

    def put(self, adapter: int, down: torch.Tensor, up: torch.Tensor) -> None:
        """See LowRank."""
        if len(down) * down.itemsize % WORD_BYTES:  # the rank is the number of B's inputs
            down = torch.cat((down, torch.zeros_like(down[:1])))
            up = torch.cat((up, torch.zeros_like(up[:, :1])), dim=1)
        of_down, of_up = (panels_of(self._pack, factor, factor.new_empty) for factor in (down, up))
        self._panels[adapter] = (of_down, of_up, len(down))
        self._list()

    def remove(self, adapter: int) -> None:
        """See LowRank."""
        if self._panels.pop(adapter, None) is not None:
            self._list()

    def add(self, x: torch.Tensor, y: torch.Tensor, rows: AdapterRows, activated: torch.Tensor | None = None) -> None:
        """See LowRank."""
        x = x.contiguous()
        self._product(
            x.data_ptr(),
            rows.adapters.data_ptr(),
            self._factors.data_ptr(),
            y.data_ptr(),
            None if activated is None else activated.data_ptr(),
            *x.shape,
            y.shape[1],
            len(self._factors),
        )

    def _list(self) -> None:
        self._factors = torch.tensor(
            [(adapter, down.data_ptr(), up.data_ptr(), rank) for adapter, (down, up, rank) in self._panels.items()],
            dtype=torch.int64,
        ).reshape(-1, 4)
