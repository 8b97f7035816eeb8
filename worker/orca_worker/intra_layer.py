"""`IntraLayer`: the ranks of one inter-layer partition, which share every layer between them.

Says which slice of a dimension this rank holds, and how partial results become whole: sums after
row-parallel maps, columns of the logits gathered to rank 0. With one rank all of it is the identity.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from itertools import pairwise

import torch
import torch.distributed as dist

from orca_worker.errors import NeighbourError
from orca_worker.shared_sum import SharedSum


class IntraLayer:
    """`rank` of `size` ranks. `group` and `shared` are set anew by every formation, on ranks that have neighbours."""

    def __init__(self, rank: int = 0, size: int = 1) -> None:
        self.rank = rank
        self.size = size
        self.group: dist.ProcessGroup | None = None
        self.shared: SharedSum | None = None

    def part(self, total: int) -> slice:
        """Return this rank's slice of `total` entries; sizes differ by at most one."""
        return slice(total * self.rank // self.size, total * (self.rank + 1) // self.size)

    def kv_heads(self, num_kv_heads: int) -> slice:
        """Return this rank's K/V heads; with fewer heads than ranks, neighbours hold copies of one."""
        if num_kv_heads >= self.size:
            return self.part(num_kv_heads)
        head = self.rank * num_kv_heads // self.size
        return slice(head, head + 1)

    def sum(self, x: torch.Tensor) -> torch.Tensor:
        """Return the sum of all ranks' x, in place."""
        if self.shared is not None and self.shared.takes(x):
            return self.shared.sum(x)
        if self.size > 1:
            with self._naming_the_loss():
                dist.all_reduce(x, group=self.group)
        return x

    def from_first(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return rank 0's token ids (int64) on every rank; the others give zeros of the same shape."""
        if self.shared is not None:
            # Token ids are whole numbers below 2**24, which float32 holds, and so sums with zeros, exactly.
            return self.shared.sum(tokens.float()).long()
        if self.size > 1:
            with self._naming_the_loss():
                dist.broadcast(tokens, group=self.group, group_src=0)
        return tokens

    def gather_columns(self, x: torch.Tensor, total: int) -> torch.Tensor:
        """Return [rows, total] on rank 0 from each rank's x [rows, its part]; other ranks get x back."""
        if self.size == 1:
            return x
        widest = -(-total // self.size)
        padded = torch.nn.functional.pad(x, (0, widest - x.shape[1])).contiguous()
        parts = [torch.empty_like(padded) for _ in range(self.size)] if self.rank == 0 else None
        with self._naming_the_loss():
            dist.gather(padded, parts, group=self.group, group_dst=0)
        if parts is None:
            return x
        starts = [total * rank // self.size for rank in range(self.size + 1)]
        widths = [end - start for start, end in pairwise(starts)]
        return torch.cat([part[:, :width] for part, width in zip(parts, widths, strict=True)], dim=1)

    @contextlib.contextmanager
    def _naming_the_loss(self) -> Iterator[None]:
        """Raise NeighbourError where a collective breaks: gloo and NCCL raise RuntimeError."""
        try:
            yield
        except RuntimeError as error:
            gist = str(error).splitlines()[0]
            raise NeighbourError(f"rank {self.rank} of this worker lost another: {gist}") from error
