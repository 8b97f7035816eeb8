"""A `Record` for emulated CUDA kernels, which records launches and their arguments like a CUDA graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from orca_kernels.cuda.modules import Grid, Kernel, Launcher
from orca_kernels.recorder import OperationRecorder, Step


class LaunchRecorder(OperationRecorder):
    """Records torch's operations and the kernels launched through it."""

    def __init__(self, launcher: Launcher) -> None:
        super().__init__()
        self._launcher = launcher
        self.sizes: list[int] = []
        """Number of rows of each recording."""

    def __call__(self, work: Callable[[], torch.Tensor]) -> tuple[torch.Tensor, Step]:
        output, replay = super().__call__(work)
        self.sizes.append(len(output))
        return output, replay

    @property
    def multiprocessors(self) -> int:
        """See Launcher."""
        return self._launcher.multiprocessors

    def launch(self, kernel: Kernel, grid: Grid, threads: int, arguments: Sequence[Any]) -> None:
        """See Launcher."""
        step = partial(self._launcher.launch, kernel, grid, threads, arguments)
        step()
        self.note(step)
