"""`FileStore`: the files of /v1/files in a folder, bounded in number, bytes and age. Each belongs to an API key.

A file is `ID.jsonl`, and its record `ID.json`, which is written when the file is complete. Names come from ids that
this module makes, never from clients. Methods that write to the disk are called on threads, one at a time for a file.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path

from orca_master.batches.config import BatchConfig
from orca_master.batches.disk import read_records, write_record
from orca_master.batches.disk_threads import DiskThreads
from orca_master.batches.records import FILE_RECORDS, FileRecord
from orca_master.batches.shares import Shares

logger = logging.getLogger(__name__)


class FileStore:
    """Files below `config.folder`. Used from one event loop, except for `path` and `write_record`."""

    def __init__(self, config: BatchConfig, threads: DiskThreads) -> None:
        self.config, self.threads = config, threads
        self.room = Shares(
            config.max_bytes,
            f"the files of this server have {config.max_bytes} bytes at most, and half of them those of one API key "
            "(--max-batch-bytes): delete some",
        )
        """Bytes of all files, those included that are being written."""
        self.places = Shares(
            config.max_files,
            f"the server keeps at most {config.max_files} files, those of unfinished batches included, and half of "
            "them of one API key (--max-batch-files): delete some",
        )
        """Number of files, and of those that may come: uploads, and two of each unfinished batch."""
        self._folder = config.folder / "files"
        self._files: dict[str, FileRecord] = {}

    def open(self, kept: Mapping[str, str], keeps_all: bool = False) -> None:
        """Read the records; delete files without one, unless `kept` has their ids → owners. Raises OSError.

        A file whose record cannot be read is not deleted; with `keeps_all` none is, because batches may need it whose
        records cannot be read. It takes its room without an owner.
        """
        self._folder.mkdir(mode=0o700, exist_ok=True)
        for record in read_records(self._folder, FILE_RECORDS).values():
            if self.path(record.id).is_file():
                self.add(record)
            else:  # removed between the content and the record
                self.path(record.id).with_suffix(".json").unlink()
        for path in self._folder.glob("*.jsonl"):
            record_of = self._files.get(path.stem)
            owner = kept.get(path.stem) if record_of is None else record_of.owner
            if owner is None and (keeps_all or path.with_suffix(".json").exists()):
                owner = ""
            if owner is None:
                path.unlink()
            else:
                self.room.add(owner, path.stat().st_size)

    def path(self, file_id: str) -> Path:
        """Return the path of a file's content."""
        return self._folder / f"{file_id}.jsonl"

    def get(self, owner: str, file_id: str) -> FileRecord | None:
        """Return a file of an API key, None if the key has no file of this id."""
        record = self._files.get(file_id)
        return record if record is not None and record.owner == owner else None

    def of(self, owner: str) -> list[FileRecord]:
        """Return the files of an API key, the latest first."""
        mine = [record for record in self._files.values() if record.owner == owner]
        return sorted(mine, key=lambda record: (record.created_at, record.id), reverse=True)

    @contextlib.contextmanager
    def promised(self, owner: str, count: int) -> Iterator[None]:
        """Reserve places for files while they are written; raise RequestError if there are too many."""
        self.places.take(owner, count)
        try:
            yield
        finally:
            self.places.add(owner, -count)

    def write_record(self, record: FileRecord) -> None:
        """Write the record of a file that is on the disk; `add` follows. Raises OSError."""
        write_record(self.path(record.id).with_suffix(".json"), asdict(record))

    def add(self, record: FileRecord) -> None:
        """Show a complete file to its owner, in place of an earlier record of it."""
        if record.id not in self._files:
            self.places.add(record.owner, 1)
        self._files[record.id] = record

    async def delete(self, record: FileRecord) -> None:
        """Delete a file; content that a client is reading can be read to its end. Raises OSError, and keeps it then."""
        if self._files.pop(record.id, None) is None:
            return
        try:
            await self.threads.run(self._unlink, record.id)
        except OSError:
            self._files[record.id] = record
            raise
        finally:
            if record.id not in self._files:
                self.places.add(record.owner, -1)
                self.room.add(record.owner, -record.num_bytes)

    async def discard(self, owner: str, file_id: str, num_bytes: int) -> None:
        """Remove the content of a file that is not shown, and its record if there is one. Raises OSError."""
        try:
            await self.threads.run(self._unlink, file_id)
        finally:  # a content that is left is removed at the next start
            self.room.add(owner, -num_bytes)

    async def delete_old(self, used: Callable[[], Collection[str]]) -> None:
        """Delete the files beyond their age that no unfinished batch uses."""
        end = time.time() - self.config.seconds
        for record in [entry for entry in self._files.values() if entry.created_at < end]:
            if record.id in used():
                continue
            try:
                await self.delete(record)
            except OSError as error:
                logger.error("file %s is not deleted: %s", record.id, error)

    def _unlink(self, file_id: str) -> None:
        self.path(file_id).unlink(missing_ok=True)
        self.path(file_id).with_suffix(".json").unlink(missing_ok=True)
