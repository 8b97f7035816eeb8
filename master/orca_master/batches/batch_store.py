"""`BatchStore`: the records of /v1/batches in a folder. Each belongs to an API key."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

from orca_master.batches.config import WINDOW_SECONDS, BatchConfig
from orca_master.batches.disk import read_records, write_record
from orca_master.batches.disk_threads import DiskThreads
from orca_master.batches.records import (
    BATCH_RECORDS,
    UNFINISHED,
    BatchRecord,
    FileRecord,
    Status,
    new_batch_id,
    new_file_id,
)
from orca_master.batches.shares import Shares
from orca_master.journal.records import AdapterFiles

logger = logging.getLogger(__name__)


class BatchStore:
    """Batches below `config.folder`, at most as many as files. Used from one event loop."""

    def __init__(self, config: BatchConfig, threads: DiskThreads) -> None:
        self._config, self._threads = config, threads
        self._folder = config.folder / "batches"
        self._batches: dict[str, BatchRecord] = {}
        self._coming: dict[str, BatchRecord] = {}
        """Batches that are being written for the first time."""
        self.earlier: frozenset[str] = frozenset()
        """Ids of the batches that earlier masters began."""
        self._turn = asyncio.Lock()
        """Of the changes: two would write the same temporary file."""

    def open(self) -> bool:
        """Read the records; return whether all could be read. Raises OSError."""
        self._folder.mkdir(mode=0o700, exist_ok=True)
        self._batches = read_records(self._folder, BATCH_RECORDS)
        self.earlier = frozenset(self._batches)
        return all(path.stem in self._batches for path in self._folder.glob("*.json"))

    def new(
        self,
        owner: str,
        endpoint: str,
        file: FileRecord,
        metadata: dict[str, str],
        adapters: dict[str, AdapterFiles],
    ) -> BatchRecord:
        """Return a new batch, which `create` stores; raise RequestError if too many are unfinished."""
        unfinished = Shares(
            self._config.max_files,
            f"at most {self._config.max_files} batches are unfinished at a time, and half of them those of one API key "
            "(--max-batch-files): wait for one or cancel one",
        )
        for batch in (*self.unfinished, *self._coming.values()):
            unfinished.add(batch.owner, 1)
        unfinished.take(owner, 1)
        now = int(time.time())
        return BatchRecord(
            new_batch_id(),
            owner,
            endpoint,
            file.id,
            file.num_lines,
            now,
            now + WINDOW_SECONDS,
            new_file_id(),
            new_file_id(),
            metadata,
            adapters,
        )

    async def create(self, batch: BatchRecord) -> None:
        """Store a batch of `new`, whose files are in use now, and show it when it is on the disk. Raises OSError."""
        self._coming[batch.id] = batch
        try:
            await self._write(batch)
            await self.add(batch)
        except OSError:
            with contextlib.suppress(OSError):
                await self._unlink(batch)
            raise
        finally:
            del self._coming[batch.id]

    async def enter(self, batch: BatchRecord, status: Status, before: Collection[str] = UNFINISHED) -> bool:
        """Store a batch with a new status, and show the status when it is on the disk.

        Return False, and do nothing, if its status is none of those `before`. Raises OSError, and changes nothing then.
        """
        async with self._turn:
            if batch.status not in before:
                return False
            changed = replace(batch, times=dict(batch.times))
            changed.enter(status)
            await self._write(changed)
            batch.status, batch.times = changed.status, changed.times
        return True

    async def set_adapters(self, batch: BatchRecord, adapters: dict[str, AdapterFiles]) -> None:
        """Store a batch with other adapters; do nothing if it has these. Raises OSError, and changes nothing then."""
        if batch.adapters == adapters:
            return
        async with self._turn:
            await self._write(replace(batch, adapters=adapters))
            batch.adapters = adapters

    async def _write(self, batch: BatchRecord) -> None:
        await self._threads.run(write_record, self._path(batch), batch.fields())

    async def _unlink(self, batch: BatchRecord) -> None:
        await self._threads.run(self._path(batch).unlink, missing_ok=True)

    async def add(self, batch: BatchRecord) -> None:
        """Show a batch to its owner; of the key that has most, the batch that ended first makes room for it."""
        while len(self._batches) >= self._config.max_files:
            ended = [entry for entry in self._batches.values() if not entry.is_unfinished]
            if not ended:
                break
            counts = Counter(entry.owner for entry in self._batches.values())
            if not await self._delete(min(ended, key=lambda entry: (-counts[entry.owner], entry.ended_at))):
                break
        self._batches[batch.id] = batch

    def get(self, owner: str, batch_id: str) -> BatchRecord | None:
        """Return a batch of an API key, None if the key has no batch of this id."""
        batch = self._batches.get(batch_id)
        return batch if batch is not None and batch.owner == owner else None

    def of(self, owner: str) -> list[BatchRecord]:
        """Return the batches of an API key, the latest first."""
        mine = [batch for batch in self._batches.values() if batch.owner == owner]
        return sorted(mine, key=lambda batch: (batch.created_at, batch.id), reverse=True)

    @property
    def unfinished(self) -> list[BatchRecord]:
        """The batches without a final status, in the order in which they are answered."""
        batches = [batch for batch in self._batches.values() if batch.is_unfinished]
        return sorted(batches, key=lambda batch: (batch.created_at, batch.id))

    @property
    def used_files(self) -> set[str]:
        """Ids of the files that unfinished batches read and write."""
        batches = (*self.unfinished, *self._coming.values())
        return {name for batch in batches for name in (batch.input_file_id, batch.output_id, batch.error_id)}

    async def delete_old(self) -> None:
        """Delete the batches that ended longer ago than they are kept."""
        end = time.time() - self._config.seconds
        for batch in [entry for entry in self._batches.values() if 0 < entry.ended_at < end]:
            await self._delete(batch)

    async def _delete(self, batch: BatchRecord) -> bool:
        """Delete a batch that has ended, if it is still there; keep it and return False if the disk fails."""
        if self._batches.pop(batch.id, None) is None:
            return True
        try:
            await self._unlink(batch)
        except OSError as error:
            logger.error("batch %s is not deleted: %s", batch.id, error)
            self._batches[batch.id] = batch
            return False
        return True

    def _path(self, batch: BatchRecord) -> Path:
        return self._folder / f"{batch.id}.json"
