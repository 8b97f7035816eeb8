"""`Batches`: the files and batches of one folder, for one master at a time."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator

from orca_master.batches.batch_run import FILES_PER_BATCH, LineCalls
from orca_master.batches.batch_store import BatchStore
from orca_master.batches.config import BatchConfig
from orca_master.batches.disk_threads import DiskThreads
from orca_master.batches.file_store import FileStore
from orca_master.batches.records import BatchRecord, FileRecord
from orca_master.batches.runner import BatchRunner
from orca_master.errors import ConfigurationError
from orca_master.journal.folder_lock import lock_folder, when_free

OPTION = "--batch-directory"


class Batches:
    """Files, batches and their runner. Use `open_batches`."""

    def __init__(self, config: BatchConfig, calls: LineCalls) -> None:
        self.config, self._calls = config, calls
        self.threads = DiskThreads()
        self.files = FileStore(config, self.threads)
        self.batches = BatchStore(config, self.threads)
        self.runner = BatchRunner(self.files, self.batches, config, calls)
        self._task: asyncio.Task[None] | None = None

    def open(self) -> None:
        """Read the folder, which this process has locked; called on a thread. Raises OSError."""
        has_all = self.batches.open()
        unfinished = self.batches.unfinished
        kept = {name: batch.owner for batch in unfinished for name in (batch.output_id, batch.error_id)}
        self.files.open(kept, keeps_all=not has_all)
        for batch in unfinished:
            self.files.places.add(batch.owner, FILES_PER_BATCH)

    def start(self) -> None:
        """Begin to answer batches, those of an earlier master included."""
        self._task = asyncio.create_task(self.runner.run())

    async def close(self) -> None:
        """Abandon the lines that are being answered; the next master sends them again."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    @property
    def num_unfinished(self) -> int:
        """Number of batches without a final status."""
        return len(self.batches.unfinished)

    async def create(self, owner: str, endpoint: str, file: FileRecord, metadata: dict[str, str]) -> BatchRecord:
        """Store a new batch and begin it; raise RequestError at a limit, OSError if it cannot be stored."""
        batch = self.batches.new(owner, endpoint, file, metadata, self._calls.loaded_by(owner))
        self.files.places.take(owner, FILES_PER_BATCH)
        try:
            await self.batches.create(batch)
        except BaseException:
            self.files.places.add(owner, -FILES_PER_BATCH)
            raise
        self.runner.wake()
        return batch

    async def cancel(self, batch: BatchRecord) -> None:
        """Cancel a batch; do nothing if it has ended or its answers are complete. Raises OSError."""
        if await self.batches.enter(batch, "cancelling", ("validating", "in_progress")):
            self.runner.cancel(batch)


@contextlib.asynccontextmanager
async def open_batches(config: BatchConfig, calls: LineCalls, patience: float = 0.0) -> AsyncIterator[Batches]:
    """Lock and open the folder; `start` begins to answer batches.

    Raises ConfigurationError if that is impossible, after `patience` seconds if another master uses the folder.
    """
    batches = Batches(config, calls)
    try:
        config.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = await when_free(lambda _: lock_folder(config.folder, OPTION), patience)
    except OSError as error:
        raise ConfigurationError(f"{OPTION} {config.folder}: {error.strerror}") from error
    try:
        try:
            await batches.threads.run(batches.open)
        except OSError as error:
            raise ConfigurationError(f"{OPTION} {config.folder}: {error.strerror}") from error
        yield batches
    finally:
        await batches.close()
        batches.threads.close()
        os.close(lock)
