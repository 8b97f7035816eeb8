"""`SymmetricSum`: all-reduce over the GPUs of a worker through torch's symmetric memory. Not yet run on a GPU.

Every rank copies its addend into memory that the other GPUs read, and one kernel waits for all ranks, adds the addends,
and waits until all ranks have read: one exchange, where NCCL's all-reduce of a few tokens makes several. The kernel can
be part of a CUDA graph. Nothing ends its wait for a lost rank but the end of the process.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
import torch.distributed as dist

CAPACITY = 512 << 10
"""Bytes of the largest tensor: each rank reads the whole tensor of every other one, for which NCCL moves less data."""
DTYPES = (torch.float32, torch.bfloat16)
"""Element types of torch's kernel."""
ALIGNMENT = 16
"""The kernel reads words of this many bytes if the size is a multiple."""


class SymmetricMemory(Protocol):
    """The functions of torch that are used here. They raise RuntimeError."""

    def empty(self, num_bytes: int, device: torch.device) -> torch.Tensor:
        """Return bytes that other ranks can map."""

    def rendezvous(self, buffer: torch.Tensor, group: dist.ProcessGroup) -> None:
        """Map the buffers of all ranks, which must call this at the same time; waits in the group's store."""

    def can_read(self, device: torch.device, other: int) -> bool:
        """Return True if a GPU can read the memory of another one."""

    def all_reduce(self, addend: torch.Tensor, group: str) -> torch.Tensor:
        """Return the sum of all ranks' `addend`, a view of the buffer."""


class TorchSymmetricMemory:
    """Implements `SymmetricMemory`. The module is imported by its first use."""

    def empty(self, num_bytes: int, device: torch.device) -> torch.Tensor:
        """See SymmetricMemory."""
        from torch.distributed import _symmetric_memory

        return _symmetric_memory.empty(num_bytes, dtype=torch.uint8, device=device)

    def rendezvous(self, buffer: torch.Tensor, group: dist.ProcessGroup) -> None:
        """See SymmetricMemory."""
        from torch.distributed import _symmetric_memory

        _symmetric_memory.rendezvous(buffer, group)

    def can_read(self, device: torch.device, other: int) -> bool:
        """See SymmetricMemory."""
        return torch.cuda.can_device_access_peer(device, other)

    def all_reduce(self, addend: torch.Tensor, group: str) -> torch.Tensor:
        """See SymmetricMemory."""
        total: Any = torch.ops.symm_mem.one_shot_all_reduce(addend, "sum", group)
        assert isinstance(total, torch.Tensor)
        return total


class SymmetricSum:
    """The sum of one tensor-parallel group; every rank must create it at the same time.

    torch keeps what belongs to a group for the rest of the process: no later group of the process may share memory.
    Raises RuntimeError if another rank is lost.
    """

    def __init__(self, group: dist.ProcessGroup, device: torch.device, memory: SymmetricMemory) -> None:
        self._memory = memory
        self._group = group.group_name
        self._buffer = memory.empty(CAPACITY, device)
        memory.rendezvous(self._buffer, group)

    def accepts(self, x: torch.Tensor) -> bool:
        """Return True if `sum` supports this tensor; all ranks agree, because they sum tensors of the same form."""
        return x.dtype in DTYPES and x.is_contiguous() and 0 < x.nbytes <= CAPACITY and x.nbytes % ALIGNMENT == 0

    def sum(self, x: torch.Tensor) -> torch.Tensor:
        """Return the sum of all ranks' `x` as a new tensor."""
        addend = self._buffer[: x.nbytes].view(x.dtype).view(x.shape)
        addend.copy_(x)  # all ranks have read the previous addend: its kernel has ended
        return self._memory.all_reduce(addend, self._group)


def unreadable_gpu(device: torch.device, rank: int, size: int, memory: SymmetricMemory) -> int | None:
    """Return a GPU of the group's `size` ranks whose memory the GPU of this rank cannot read, None if there is none.

    The GPUs of a worker have successive numbers.
    """
    first = device.index - rank
    others = (other for other in range(first, first + size) if other != device.index)
    return next((other for other in others if not memory.can_read(device, other)), None)
