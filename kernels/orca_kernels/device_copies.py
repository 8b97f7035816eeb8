"""`to_device`: copies to a device during which the host goes on.

A copy between a GPU and memory that is not pinned, or one without `non_blocking`, makes the host wait for earlier work
of the device.
"""

from __future__ import annotations

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
