"""A `Record` for the CPU that keeps what a CUDA graph keeps: operations and launches, their memory and numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from orca_kernels.cuda.modules import Grid, Kernel, Launcher
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

Step = Callable[[], None]


class Recorder(TorchDispatchMode):
    """Records torch's operations, and the kernels that are launched through it; raises RuntimeError for a host's read.

    Replaying computes every step again into the memory that its output had, as on a device.
    """

    def __init__(self, launcher: Launcher) -> None:
        super().__init__()
        self._launcher = launcher
        self._steps: list[Step] | None = None
        self.sizes: list[int] = []
        """Rows of each recording."""

    def __call__(self, work: Callable[[], torch.Tensor]) -> tuple[torch.Tensor, Callable[[], None]]:
        steps: list[Step] = []
        self._steps = steps
        with self:
            output = work()
        self._steps = None
        self.sizes.append(len(output))

        def replay() -> None:
            for step in steps:
                step()

        return output, replay

    def launch(self, kernel: Kernel, grid: Grid, threads: int, arguments: Sequence[Any]) -> None:
        """See Launcher."""
        step = partial(self._launcher.launch, kernel, grid, threads, arguments)
        if self._steps is not None:
            self._steps.append(step)
        step()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "_local_scalar_dense" in str(function):
            raise RuntimeError("the host cannot read what is being recorded")
        output = function(*args, **(kwargs or {}))
        assert self._steps is not None
        self._steps.append(partial(_again, partial(function, *args, **(kwargs or {})), output))
        return output


def _again(operation: Callable[[], Any], output: Any) -> None:
    for found, place in zip(tree_leaves(operation()), tree_leaves(output), strict=True):
        if isinstance(place, torch.Tensor) and found.data_ptr() != place.data_ptr():
            place.copy_(found)
