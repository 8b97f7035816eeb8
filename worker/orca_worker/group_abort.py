"""`GroupAbort`: ends the waits of this process in NCCL's process groups. Not yet run on a GPU."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence

import torch.distributed as dist

logger = logging.getLogger(__name__)


class GroupAbort:
    """The abort of `groups`, from threads of its own, because the caller must go on.

    NCCL first tells the kernels of a group to end, which frees whoever waits for the device. Then it waits until the
    CUDA graphs that refer to the group are gone: another thread must drop them meanwhile. Each group has a thread,
    because a kernel of one may be queued behind a kernel of another (torch issue 119797), and torch groups only the
    communicators of one process group, on a thread that it starts itself.
    """

    def __init__(self, groups: Sequence[dist.ProcessGroup]) -> None:
        self._groups = groups
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []

    def begin(self) -> None:
        """Start the abort, unless it has started already; from any thread."""
        with self._lock:
            if not self._threads:
                self._threads = [
                    threading.Thread(target=_abort, args=(group,), name="abort", daemon=True) for group in self._groups
                ]
                for thread in self._threads:
                    thread.start()

    def wait(self) -> None:
        """Wait until the groups are aborted. Drop the CUDA graphs that refer to them before."""
        for thread in self._threads:
            thread.join()


def _abort(group: dist.ProcessGroup) -> None:
    try:
        group.abort()
    except RuntimeError as error:
        logger.warning("a process group could not be aborted: %s", error)
