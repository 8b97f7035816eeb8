"""`HostCopies`: copies from a device to the host during which the host goes on. On the CPU nothing is copied.

`orca_kernels.device_copies` has those to the device.
"""

from __future__ import annotations

from collections.abc import Callable

import torch


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
