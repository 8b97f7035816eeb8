"""`SharedSum`: sums over the ranks of one worker through shared memory, on the CPU.

gloo's all-reduce goes through sockets and takes a millisecond for a token's activations, and every layer has two. The
ranks of a worker share a machine, so they can share memory (orca_kernels/cpu/all_reduce.h).
"""

from __future__ import annotations

import ctypes
import mmap
import os
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from orca_kernels.cpu.library import BuildError, load

from orca_worker.errors import NeighbourError

CAPACITY = 1 << 20
"""Bytes of a buffer; longer tensors go in several rounds."""
PATH_BYTES = 256
"""Longest path of shared memory; ours have 20 characters."""
LINE = 64
SUFFIXES = {torch.float32: "float32", torch.bfloat16: "bfloat16"}
LOST = {-1: "did not come", -2: "is gone"}


class SharedSum:
    """`rank` of `size` ranks that have mapped the same `path`."""

    def __init__(self, library: ctypes.CDLL, path: Path, rank: int, size: int, timeout: float) -> None:
        self._rank, self._size, self._timeout = rank, size, timeout
        self._round = 0
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), num_bytes(size))
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        ctypes.c_int64.from_address(self._address + rank * LINE).value = os.getpid()
        self._functions = {}
        for dtype, suffix in SUFFIXES.items():
            function = getattr(library, f"orca_all_reduce_{suffix}")
            function.argtypes = [
                ctypes.c_void_p,
                ctypes.c_int64,
                ctypes.c_void_p,
                *[ctypes.c_int64] * 4,
                ctypes.c_double,
            ]
            function.restype = ctypes.c_int64
            self._functions[dtype] = function

    def takes(self, x: torch.Tensor) -> bool:
        """Whether `sum` can be asked for this tensor."""
        return x.dtype in self._functions and x.is_contiguous()

    def sum(self, x: torch.Tensor) -> torch.Tensor:
        """Return the sum of all ranks' x, in place; raise NeighbourError if one is lost."""
        done = self._functions[x.dtype](
            x.data_ptr(), x.numel(), self._address, self._rank, self._size, CAPACITY, self._round, self._timeout
        )
        if done < 0:
            raise NeighbourError(f"rank {self._rank} of this worker lost another: it {LOST[done]}")
        self._round = done
        return x


def num_bytes(size: int) -> int:
    """Bytes that `size` ranks share."""
    return size * (LINE + 2 * CAPACITY)


def share_memory(group: dist.ProcessGroup | None, rank: int, size: int, timeout: float) -> SharedSum | None:
    """Make a SharedSum with the other ranks of a gloo group, or None if one of them cannot: all ranks get the same."""
    path = _same_path(_make(size) if rank == 0 else "", group)
    shared = None
    try:
        if path:
            shared = SharedSum(load(), Path(path), rank, size, timeout)
    except (BuildError, OSError):
        pass
    ready = torch.tensor(int(shared is not None))
    dist.all_reduce(ready, op=dist.ReduceOp.MIN, group=group)
    if rank == 0 and path:
        Path(path).unlink(missing_ok=True)  # the memory lives as long as it is mapped
    return shared if ready.item() else None


def _same_path(path: str, group: dist.ProcessGroup | None) -> str:
    """Return rank 0's path on every rank. Its bytes travel as a tensor: torch would send a string as a pickle."""
    encoded = os.fsencode(path)
    padded = torch.tensor(list(encoded.ljust(PATH_BYTES, b"\0")), dtype=torch.uint8)
    dist.broadcast(padded, group=group, group_src=0)
    return os.fsdecode(bytes(padded.tolist()).rstrip(b"\0"))


def _make(size: int) -> str:
    """Return the path of zeroed memory, empty if there is none to share."""
    try:
        handle, path = tempfile.mkstemp(prefix="orca-", dir="/dev/shm")
        with os.fdopen(handle, "wb") as file:
            file.truncate(num_bytes(size))
    except OSError:
        return ""
    return path
