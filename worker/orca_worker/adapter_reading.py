"""`AdapterReading`: the thread on which a controller reads the files of adapters, with a bound of the time.

A read of a storage that does not answer cannot be ended. So there is one thread, and nothing new is read before it is
free again. Imports no torch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from orca_protos.deadlines import ADAPTER_FILES_SECONDS

from orca_worker.errors import ModelError


class AdapterReading:
    """Calls functions that read files, one at a time."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "adapter-files")
        self._late: Future[str] | None = None
        """The last read that did not end in time."""

    @property
    def hangs(self) -> bool:
        """True while a read goes on that did not end in time."""
        return self._late is not None and not self._late.done()

    async def run(self, read: Callable[[], str]) -> str:
        """Return the result of `read`; raise what it raises, or TimeoutError after ADAPTER_FILES_SECONDS.

        The time includes that of a read before, whose caller may have left.
        """
        reading = self._thread.submit(read)
        try:
            return await asyncio.wait_for(asyncio.wrap_future(reading), ADAPTER_FILES_SECONDS)
        except TimeoutError:
            if not reading.cancelled():  # else it has waited for that before, and never began
                self._late = reading
            raise

    def check_free(self) -> None:
        """Raise ModelError while a read hangs."""
        if self.hangs:
            raise ModelError("an earlier read of an adapter's files has not ended: load the adapter later")
