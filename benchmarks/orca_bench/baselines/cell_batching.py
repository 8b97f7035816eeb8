"""Cell batching in the manner of BatchMaker (paper, section 7; Gao et al., EuroSys 2018).

The graph of a request has one cell per input or generated token, so a prompt is processed token by token. Identical
cells are batched; in a Transformer only cells with the same token index are identical, because the number of keys and
values depends on the index. Requests join and leave at every cell. A type of cell with a full batch goes first, else
the type of the oldest request. No pipeline parallelism: one batch at a time.
"""

from __future__ import annotations

from collections.abc import Hashable

from orca_master.scheduling.request import Request

from orca_bench.baselines.aligned import Aligned


class CellBatching(Aligned):
    """A `Scheduling` over cells of one token."""

    def __init__(self, max_batch_size: int, slots: int) -> None:
        super().__init__(max_batch_size, num_in_flight=1, slots=slots)

    def shape(self, request: Request) -> Hashable:
        """Return the token index."""
        return request.num_computed

    def num_tokens(self, request: Request) -> int:
        """Return 1, a single cell."""
        return 1

    def first(self, groups: list[list[Request]]) -> list[Request]:
        """Return a full batch if there is one, else the group with the oldest request."""
        return next((group for group in groups if len(group) >= self._max_batch_size), groups[0])
