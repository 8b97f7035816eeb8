"""`RestoredAdapters`: adapters that were loaded at run time, loaded again for requests that an earlier master accepted.

These are the unfinished requests of the journal and the lines of batches.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from orca_master.engine.adapter_calls import AdapterRestorer
from orca_master.engine.adapter_registry import OFF
from orca_master.errors import EngineUnavailableError, RequestError, RequestTimeoutError
from orca_master.journal.records import AdapterFiles

RETRY_SECONDS = 1.0
"""Period of the attempts while no pipeline serves."""


@dataclass(slots=True)
class _Entry:
    loading: asyncio.Task[int]
    num_users: int = 0


class RestoredAdapters:
    """Loads each adapter once for all requests that use it, and lets it leave after the last one.

    `adapters`: None without --enable-runtime-adapters. `is_stopped`: whether the engine has ended.
    """

    def __init__(self, adapters: AdapterRestorer | None, is_stopped: Callable[[], bool]) -> None:
        self._adapters = adapters
        self._is_stopped = is_stopped
        self._entries: dict[tuple[str, AdapterFiles], _Entry] = {}

    def files(self, number: int) -> AdapterFiles | None:
        """Return what the journal needs of the adapter of a new request, None if the adapter has left."""
        loaded = None if self._adapters is None else self._adapters.of_number(number)
        return None if loaded is None else AdapterFiles(loaded.name, loaded.folder, loaded.digest)

    @contextlib.asynccontextmanager
    async def held(self, owner: str, files: AdapterFiles, deadline: float | None = None) -> AsyncIterator[int]:
        """Hold an adapter of an owner for the length of the block, whose value is the adapter's number.

        Raises RequestError if the adapter is refused, RequestTimeoutError at the `deadline` (seconds since the epoch),
        EngineUnavailableError when the engine has ended. While no pipeline serves it waits, as the engine's requests.
        """
        key = (owner, files)
        if key not in self._entries:
            self._entries[key] = _Entry(asyncio.create_task(self._restore(*key)))
        entry = self._entries[key]
        entry.num_users += 1
        try:
            seconds = None if deadline is None else max(0.0, deadline - time.time())
            try:
                async with asyncio.timeout(seconds):
                    number = await asyncio.shield(entry.loading)
            except TimeoutError as error:
                raise RequestTimeoutError(f"not finished within {seconds or 0.0:.6g} s") from error
            yield number
        finally:
            entry.num_users -= 1
            if not entry.num_users:
                del self._entries[key]
                self._end(entry.loading)

    def _end(self, loading: asyncio.Task[int]) -> None:
        if not loading.done():  # its requests have reached their deadlines; the engine goes on with it
            loading.add_done_callback(self._end)
        elif not loading.cancelled() and loading.exception() is None and not self._is_stopped():
            assert self._adapters is not None
            self._adapters.release(loading.result())

    async def _restore(self, owner: str, files: AdapterFiles) -> int:
        if self._adapters is None:
            raise RequestError(OFF)
        while True:
            try:
                return await self._adapters.restore(files.name, files.folder, owner, files.digest)
            except EngineUnavailableError:
                if self._is_stopped():
                    raise
            await asyncio.sleep(RETRY_SECONDS)
            entry = self._entries.get((owner, files))
            if entry is None or entry.loading is not asyncio.current_task():
                raise EngineUnavailableError("nobody waits for the adapter any more")
