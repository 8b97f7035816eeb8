"""`TensorParallelGroup`: the ranks that split every layer of one inter-layer partition.

Gives the slice of a dimension that this rank holds, and the collectives: all-reduce after row-parallel maps, broadcast
of sampled tokens, gather of the logits' columns to rank 0. With one rank each collective is the identity.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
import torch.distributed as dist

from orca_worker.errors import NeighbourError
from orca_worker.shared_sum import SharedSum
from orca_worker.symmetric_sum import SymmetricSum


class TensorParallelGroup:
    """Rank `rank` of `size`.

    Each formation sets `process_group`, `shared` or `symmetric`, and `others` (the other ranks' numbers in the
    pipeline) if `size` is above 1.
    """

    def __init__(self, rank: int = 0, size: int = 1) -> None:
        self.rank = rank
        self.size = size
        self.process_group: dist.ProcessGroup | None = None
        self.shared: SharedSum | None = None
        self.symmetric: SymmetricSum | None = None
        self.others: Sequence[int] = ()

    def part(self, total: int) -> slice:
        """Return this rank's slice of `total` entries; sizes differ by at most one."""
        return slice(total * self.rank // self.size, total * (self.rank + 1) // self.size)

    def kv_heads(self, num_kv_heads: int) -> slice:
        """Return this rank's K/V heads; with fewer heads than ranks, adjacent ranks hold copies of the same head."""
        if num_kv_heads >= self.size:
            return self.part(num_kv_heads)
        head = self.rank * num_kv_heads // self.size
        return slice(head, head + 1)

    def sum(self, x: torch.Tensor) -> torch.Tensor:
        """All-reduce x, which may be overwritten, and return the sum."""
        try:
            if self.shared is not None and self.shared.accepts(x):
                return self.shared.sum(x)
            if self.symmetric is not None and self.symmetric.accepts(x):
                return self.symmetric.sum(x)
            if self.size > 1:
                dist.all_reduce(x, group=self.process_group)
        except RuntimeError as error:
            raise self._lost(error) from error
        return x

    def from_first(self, tokens: torch.Tensor) -> torch.Tensor:
        """Broadcast rank 0's token ids (int64) to every rank; the other ranks pass zeros of the same shape."""
        if self.shared is not None:
            # Exact: token ids are integers below 2**24, which float32 represents, and the other addends are zeros.
            return self.sum(tokens.float()).long()
        if self.size > 1:
            try:
                dist.broadcast(tokens, group=self.process_group, group_src=0)
            except RuntimeError as error:
                raise self._lost(error) from error
        return tokens

    def gather_columns(self, x: torch.Tensor, total: int) -> torch.Tensor:
        """Gather the columns x [rows, part] of all ranks; return [rows, total] on rank 0, x on other ranks."""
        if self.size == 1:
            return x
        widest = -(-total // self.size)
        padded = torch.nn.functional.pad(x, (0, widest - x.shape[1])).contiguous()
        parts = [torch.empty_like(padded) for _ in range(self.size)] if self.rank == 0 else None
        try:
            dist.gather(padded, parts, group=self.process_group, group_dst=0)
        except RuntimeError as error:
            raise self._lost(error) from error
        if parts is None:
            return x
        starts = [total * rank // self.size for rank in range(self.size + 1)]
        widths = [end - start for start, end in pairwise(starts)]
        return torch.cat([part[:, :width] for part, width in zip(parts, widths, strict=True)], dim=1)

    def _lost(self, error: RuntimeError) -> NeighbourError:
        """Convert the error of a failed collective of gloo or NCCL, or of a failed shared sum."""
        summary = str(error).splitlines()[0]
        return NeighbourError(f"rank {self.rank} of this worker lost another rank: {summary}", self.others)
