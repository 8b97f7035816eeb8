"""`DataPlane`: the process group of one epoch, and activations between neighbouring partitions, over NCCL or gloo.

Nothing but activations travels here. Sends do not block and their buffers are kept until they are
through, at most one per iteration in flight, so a stage never waits for a slow neighbour (a blocking
gloo send waits for the peer's receive even at 3 KB).
"""

from __future__ import annotations

import datetime
import re
from collections import deque

import torch
import torch.distributed as dist
from torch.distributed import Store  # type: ignore[attr-defined]

from orca_worker.errors import NeighbourError
from orca_worker.intra_layer import IntraLayer
from orca_worker.shared_sum import share_memory


class DataPlane:
    """The process group of one epoch. Every rank of the pipeline must make it at the same time.

    Raises NeighbourError if they do not meet within `timeout` seconds.
    """

    def __init__(
        self,
        backend: str,
        store: Store,
        rank: int,
        world_size: int,
        ranks: IntraLayer,
        timeout: float,
        max_in_flight: int,
    ) -> None:
        self._rank = rank
        self._max_in_flight = max_in_flight
        self._sends: deque[tuple[dist.Work, torch.Tensor]] = deque()
        self._receives: deque[tuple[dist.Work, torch.Tensor]] = deque()
        self.posts_ahead = backend == "gloo"
        """Whether to post a receive as soon as it is known: gloo sends nothing before, NCCL would occupy the device."""
        self._timeout = datetime.timedelta(seconds=timeout)
        try:
            dist.init_process_group(backend, store=store, rank=rank, world_size=world_size, timeout=self._timeout)
            ranks.group = self._intra_layer_group(world_size, ranks.size)
            ranks.shared = None
            if ranks.size > 1 and backend == "gloo":
                ranks.shared = share_memory(ranks.group, ranks.rank, ranks.size, timeout)
        except (RuntimeError, dist.DistError) as error:
            raise NeighbourError(f"rank {rank} did not meet the others: {error}") from error

    def _intra_layer_group(self, world_size: int, size: int) -> dist.ProcessGroup | None:
        """Make the group of every partition, as each rank must, and return this rank's."""
        mine = None
        for first in range(0, world_size if size > 1 else 0, size):
            group = dist.new_group(list(range(first, first + size)), timeout=self._timeout)
            if first <= self._rank < first + size:
                mine = group
        return mine

    def send(self, hidden: torch.Tensor, distance: int) -> None:
        """Start sending `hidden` to the rank `distance` further on."""
        while len(self._sends) >= self._max_in_flight:
            self._wait(*self._sends.popleft())
        try:
            work = dist.isend(hidden, self._rank + distance)
        except RuntimeError as error:
            raise self._lost(error) from error
        assert work is not None
        self._sends.append((work, hidden))

    def post(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, distance: int) -> None:
        """Start receiving activations of `shape` from the rank `distance` before this one; from any thread."""
        hidden = torch.empty(shape, dtype=dtype, device=device)
        try:
            work = dist.irecv(hidden, self._rank - distance)
        except RuntimeError as error:
            raise self._lost(error) from error
        assert work is not None
        self._receives.append((work, hidden))

    def receive(self) -> torch.Tensor:
        """Return the activations that were posted first."""
        work, hidden = self._receives.popleft()
        self._wait(work, hidden)
        return hidden

    def close(self) -> None:
        """Leaves the group; what is under way is given up."""
        self._sends.clear()
        self._receives.clear()
        dist.destroy_process_group()

    def _wait(self, work: dist.Work, _buffer: torch.Tensor) -> None:
        # On NCCL this orders streams and returns at once; on gloo it waits for the data.
        try:
            work.wait(self._timeout)
        except RuntimeError as error:
            raise self._lost(error) from error

    def _lost(self, error: RuntimeError) -> NeighbourError:
        # gloo puts its source file in front and advice behind.
        gist = re.sub(r"^\[[^]]*\] *|\. This .*", "", str(error).splitlines()[0])
        return NeighbourError(f"rank {self._rank} lost its neighbour: {gist}")
