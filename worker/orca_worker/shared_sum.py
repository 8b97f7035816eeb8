"""`SharedSum`: all-reduce over the ranks of one worker through shared memory, on the CPU.

gloo's all-reduce uses sockets and takes a millisecond for a token's activations, twice per layer. The ranks of a worker
run on one machine, so they can share memory (orca_kernels/cpu/all_reduce.h).
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

CAPACITY = 1 << 20
"""Bytes of a buffer; longer tensors take several rounds."""
PATH_BYTES = 256
"""Maximum length of the path of shared memory; `_create` makes paths of 20 characters."""
LINE = 64
SUFFIXES = {torch.float32: "float32", torch.bfloat16: "bfloat16"}
LOST = {-1: "timeout", -2: "its process has exited", -3: "it has left the epoch"}
GONE = -1
"""In place of the process id of a rank that has left."""


class SharedSum:
    """Rank `rank` of `size` ranks that map the same file `path`. `timeout`: seconds to wait for another rank."""

    def __init__(self, library: ctypes.CDLL, path: Path, rank: int, size: int, timeout: float) -> None:
        self._rank, self._size, self._timeout = rank, size, timeout
        self._round = 0
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), num_bytes(size))
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self._process = ctypes.c_int64.from_address(self._address + rank * LINE)
        self._process.value = os.getpid()
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

    def leave(self) -> None:
        """End the present and all later sums of this rank, and of the ranks that wait for it; from any thread."""
        self._process.value = GONE

    def accepts(self, x: torch.Tensor) -> bool:
        """Return True if `sum` supports this tensor."""
        return x.dtype in self._functions and x.is_contiguous()

    def sum(self, x: torch.Tensor) -> torch.Tensor:
        """All-reduce x in place and return the sum; raise RuntimeError, as gloo does, if another rank is lost."""
        completed = self._functions[x.dtype](
            x.data_ptr(), x.numel(), self._address, self._rank, self._size, CAPACITY, self._round, self._timeout
        )
        if completed < 0:
            raise RuntimeError(LOST[completed])
        self._round = completed
        return x


def num_bytes(size: int) -> int:
    """Return the bytes of shared memory for `size` ranks."""
    return size * (LINE + 2 * CAPACITY)


def share_memory(group: dist.ProcessGroup | None, rank: int, size: int, timeout: float) -> SharedSum | None:
    """Create a SharedSum with the other ranks of a gloo group; return None on all ranks if one of them cannot."""
    own = _create(size) if rank == 0 else ""
    shared = None
    try:
        path = _broadcast_path(own, group)
        try:
            if path:
                shared = SharedSum(load(), Path(path), rank, size, timeout)
        except (BuildError, OSError):
            pass
        ready = torch.tensor(int(shared is not None))
        dist.all_reduce(ready, op=dist.ReduceOp.MIN, group=group)
    finally:
        if own:
            Path(own).unlink(missing_ok=True)  # mappings keep the memory
    return shared if ready.item() else None


def _broadcast_path(path: str, group: dist.ProcessGroup | None) -> str:
    """Return rank 0's path on every rank. It is sent as a tensor of bytes: torch would pickle a string."""
    encoded = os.fsencode(path)
    padded = torch.tensor(list(encoded.ljust(PATH_BYTES, b"\0")), dtype=torch.uint8)
    dist.broadcast(padded, group=group, group_src=0)
    return os.fsdecode(bytes(padded.tolist()).rstrip(b"\0"))


def _create(size: int) -> str:
    """Return the path of new zeroed shared memory, empty if it cannot be created."""
    try:
        handle, path = tempfile.mkstemp(prefix="orca-", dir="/dev/shm")
        with os.fdopen(handle, "wb") as file:
            os.posix_fallocate(file.fileno(), 0, num_bytes(size))  # truncate would leave a full /dev/shm to SIGBUS
    except OSError:
        return ""
    return path
