"""Copies between host and device during which the host goes on: `to_device`, and `HostCopies` back from the device.

On the CPU nothing is copied. A copy between a GPU and memory that is not pinned, or one without `non_blocking`, makes
the host wait for all earlier work of the device.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

ALIGNMENT = 8
"""Bytes of the widest elements."""


def to_device(device: torch.device, *arrays: np.ndarray) -> list[torch.Tensor]:
    """Return the arrays on the device, dense, by one copy from pinned memory."""
    if device.type == "cpu":
        return [torch.from_numpy(np.ascontiguousarray(array)) for array in arrays]
    arrays = tuple(map(np.ascontiguousarray, arrays))
    ends = np.cumsum([-(-array.nbytes // ALIGNMENT) * ALIGNMENT for array in arrays])
    packed = torch.empty(int(ends[-1]), dtype=torch.uint8, pin_memory=device.type == "cuda")
    on_host = packed.numpy()
    places = [
        (int(end) + -array.nbytes // ALIGNMENT * ALIGNMENT, array) for end, array in zip(ends, arrays, strict=True)
    ]
    for begin, array in places:
        on_host[begin : begin + array.nbytes] = array.reshape(-1).view(np.uint8)
    there = packed.to(device, non_blocking=True)
    return [
        there[begin : begin + array.nbytes].view(torch.from_numpy(array[:0]).dtype).view(array.shape)
        for begin, array in places
    ]


class HostCopies:
    """Copies on a separate CUDA stream, so that later work on the device does not wait for them."""

    def __init__(self, device: torch.device) -> None:
        self._stream = None
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def start(self, *tensors: torch.Tensor) -> Callable[[], list[torch.Tensor]]:
        """Start to copy tensors to the host; return a function that waits for the copies and returns them."""
        if self._stream is None:
            return lambda: list(tensors)
        copies = [torch.empty_like(tensor, device="cpu", pin_memory=True) for tensor in tensors]
        done = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            for copy, tensor in zip(copies, tensors, strict=True):
                copy.copy_(tensor, non_blocking=True)
                tensor.record_stream(self._stream)  # keeps the tensor's memory until the copy is done
            done.record()

        def wait() -> list[torch.Tensor]:
            done.synchronize()
            return copies

        return wait
