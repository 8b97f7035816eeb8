"""`DiskThreads`: the threads that read and write the files of batches, so that nothing else waits for the disk."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from orca_master.threads import started_threads

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")
NUM_THREADS = 2


class DiskThreads:
    """NUM_THREADS threads of their own: those of the event loop are for others, whom slow uploads must not block."""

    def __init__(self) -> None:
        self._executor = started_threads(NUM_THREADS, "batches")

    async def run(
        self, function: Callable[Parameters, Result], *arguments: Parameters.args, **named: Parameters.kwargs
    ) -> Result:
        """Return the result of a function; when cancelled, wait for its end, so that no file is closed under it.

        Also when cancelled again: the end of the server may follow that of the batch.
        """
        future = asyncio.get_running_loop().run_in_executor(self._executor, lambda: function(*arguments, **named))
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            while not future.done():
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.wait({future})
            raise

    def close(self) -> None:
        """End the threads when their functions have ended."""
        self._executor.shutdown(wait=False)
