"""`RecordingMemory`: allocator for the intermediate results of recordings."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import TypeGuard

import numpy as np
import numpy.typing as npt
import torch

ALIGNMENT = 64
"""Bytes of a cache line, torch's alignment of tensors."""

Buffer = npt.NDArray[np.uint8]
"""A NumPy array, because an allocation by torch would be recorded."""


class RecordingMemory:
    """Host memory shared by recordings, of which only one is replayed at a time.

    Buffers freed during recording are reused later in the same recording and in the next ones. A replay repeats the
    recorded order, so it overwrites a buffer only where the recording did.
    """

    def __init__(self) -> None:
        self._free: list[Buffer] = []
        self._used: dict[int, Buffer] = {}
        """Buffers by address."""

    def empty(self, shape: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Return an uninitialised tensor; its buffer is freed with the last reference to the tensor and its views."""
        reach = 0 if 0 in shape else 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))
        if reach == 0:
            return torch.empty_strided(shape, stride, dtype=dtype)
        num_bytes = reach * dtype.itemsize
        buffer = min((buffer for buffer in self._free if len(buffer) >= num_bytes), key=len, default=None)
        if buffer is None:
            whole = np.empty(num_bytes + ALIGNMENT, np.uint8)
            buffer = whole[-whole.ctypes.data % ALIGNMENT :][:num_bytes]
        else:
            self._free = [other for other in self._free if other is not buffer]
        self._used[buffer.ctypes.data] = buffer
        lease = buffer[:num_bytes]  # the storage of the tensor below holds this reference
        weakref.finalize(lease, self._release, buffer)
        return torch.from_numpy(lease).view(dtype).as_strided(shape, stride)

    def borrow(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a tensor over the same memory that does not keep its buffer in use, for the steps of a recording.

        A tensor of other memory is returned unchanged.
        """
        buffer = self._used.get(address(tensor)) if has_storage(tensor) else None
        if buffer is None:
            return tensor
        place = tensor.storage_offset(), tensor.shape, tensor.stride()
        return torch.empty(0, dtype=tensor.dtype).set_(torch.from_numpy(buffer).untyped_storage(), *place)

    def _release(self, buffer: Buffer) -> None:
        del self._used[buffer.ctypes.data]
        self._free.append(buffer)


def has_storage(value: object) -> TypeGuard[torch.Tensor]:
    """Return True for a tensor with accessible memory; oneDNN's packed weights and sparse tensors have none."""
    return isinstance(value, torch.Tensor) and value.layout is torch.strided


def address(tensor: torch.Tensor) -> int:
    """Return the address of the tensor's storage."""
    return tensor.untyped_storage().data_ptr()
