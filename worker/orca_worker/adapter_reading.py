"""`AdapterReading`: the thread on which a controller reads the files of adapters, with a bound of the time.

A read of a storage that does not answer cannot be ended. So there is one thread, and nothing new is read before it is
free again; the process can end meanwhile. Imports no torch.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future

from orca_protos.deadlines import ADAPTER_FILES_SECONDS

from orca_worker.errors import ModelError


class AdapterReading:
    """Calls functions that read files, one at a time."""

    def __init__(self) -> None:
        self._reads: queue.SimpleQueue[tuple[Future[str], Callable[[], str]]] = queue.SimpleQueue()
        self._late: Future[str] | None = None
        """The last read that did not end in time."""
        # A daemon, for whose end the interpreter does not wait, as for threads of an executor. It starts with the
        # worker: at a limit of threads, none could be started for a request.
        threading.Thread(target=self._run, name="adapter-files", daemon=True).start()

    async def run(self, read: Callable[[], str]) -> str:
        """Return the result of `read`; raise what it raises, or TimeoutError after ADAPTER_FILES_SECONDS.

        The time includes that of a read before, whose caller may have left.
        """
        reading: Future[str] = Future()
        self._reads.put((reading, read))
        try:
            return await asyncio.wait_for(asyncio.wrap_future(reading), ADAPTER_FILES_SECONDS)
        except TimeoutError:
            if not reading.cancelled():  # else it has waited for that before, and never began
                self._late = reading
            raise

    def check_free(self) -> None:
        """Raise ModelError while a read goes on that did not end in time."""
        if self._late is not None and not self._late.done():
            raise ModelError("an earlier read of an adapter's files has not ended: load the adapter later")

    def _run(self) -> None:
        while True:
            reading, read = self._reads.get()
            if not reading.set_running_or_notify_cancel():
                continue
            try:
                reading.set_result(read())
            except BaseException as error:  # raised by `run`
                reading.set_exception(error)
