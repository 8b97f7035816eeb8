"""`HostCopies`: asynchronous copies of results from the device to the host."""

from __future__ import annotations

from collections.abc import Callable

import torch


class HostCopies:
    """Copies on a separate CUDA stream, so that later work on the device does not wait for them."""

    def __init__(self, device: torch.device) -> None:
        self._stream = None
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def start(self, tensor: torch.Tensor) -> Callable[[], torch.Tensor]:
        """Start to copy a tensor to the host; return a function that waits for the copy and returns it."""
        if self._stream is None:
            return lambda: tensor
        copy = torch.empty_like(tensor, device="cpu", pin_memory=True)
        done = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            copy.copy_(tensor, non_blocking=True)
            done.record()
        tensor.record_stream(self._stream)  # keeps the tensor's memory until the copy is done

        def wait() -> torch.Tensor:
            done.synchronize()
            return copy

        return wait
