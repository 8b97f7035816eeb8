"""`FileStore`: the files of /v1/files in a folder, bounded in number, bytes and age. Each belongs to an API key.

A file is `ID.jsonl`, and its record `ID.json`, which is written when the file is complete. Names come from ids that
this module makes, never from clients. Methods that write to the disk are called on threads, one at a time for a file.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Collection, Iterator
from dataclasses import asdict
from pathlib import Path

from orca_master.batches.config import BatchConfig
from orca_master.batches.disk import read_records, write_record
from orca_master.batches.records import FILE_ID, FILE_RECORDS, FileRecord
from orca_master.errors import RequestError

logger = logging.getLogger(__name__)


class FileStore:
    """Files below `config.folder`. Used from one event loop, except for `path` and `write_record`."""

    def __init__(self, config: BatchConfig) -> None:
        self.config = config
        self.num_bytes = 0
        """Bytes of all files, those included that are being written."""
        self.num_promised = 0
        """Files that may come: uploads, and two of each unfinished batch."""
        self._folder = config.folder / "files"
        self._files: dict[str, FileRecord] = {}

    def open(self, kept: Collection[str]) -> None:
        """Read the records; delete files without one, unless their ids are in `kept`. Raises OSError."""
        self._folder.mkdir(mode=0o700, exist_ok=True)
        for record in read_records(self._folder, FILE_RECORDS).values():
            if self.path(record.id).is_file():
                self._files[record.id] = record
            else:  # removed between the content and the record
                self.path(record.id).with_suffix(".json").unlink()
        for path in self._folder.glob("*.jsonl"):
            if path.stem in self._files or path.stem in kept:
                self.num_bytes += path.stat().st_size
            else:
                path.unlink()

    def path(self, file_id: str) -> Path:
        """Return the path of a file's content."""
        return self._folder / f"{file_id}.jsonl"

    def get(self, owner: str, file_id: str) -> FileRecord | None:
        """Return a file of an API key, None without such a file."""
        record = self._files.get(file_id) if FILE_ID.fullmatch(file_id) else None
        return record if record is not None and record.owner == owner else None

    def of(self, owner: str) -> list[FileRecord]:
        """Return the files of an API key, the latest first."""
        mine = [record for record in self._files.values() if record.owner == owner]
        return sorted(mine, key=lambda record: record.created_at)[::-1]

    @contextlib.contextmanager
    def promised(self, count: int) -> Iterator[None]:
        """Reserve places for files while they are written; raise RequestError if there are too many."""
        self.promise(count)
        try:
            yield
        finally:
            self.num_promised -= count

    def promise(self, count: int) -> None:
        """Reserve places for files; raise RequestError if they would exceed the limit."""
        if len(self._files) + self.num_promised + count > self.config.max_files:
            raise RequestError(
                f"the server keeps at most {self.config.max_files} files, those of unfinished batches included "
                "(--max-batch-files): delete some"
            )
        self.num_promised += count

    def take(self, num_bytes: int) -> None:
        """Count bytes that are about to be written; raise RequestError beyond the limit."""
        if self.num_bytes + num_bytes > self.config.max_bytes:
            raise RequestError(
                f"the files of this server have {self.config.max_bytes} bytes at most (--max-batch-bytes): delete some"
            )
        self.num_bytes += num_bytes

    def free(self, num_bytes: int) -> None:
        """Take bytes back that were not kept."""
        self.num_bytes -= num_bytes

    def write_record(self, record: FileRecord) -> None:
        """Write the record of a file that is on the disk; `add` follows. Raises OSError."""
        write_record(self.path(record.id).with_suffix(".json"), asdict(record))

    def add(self, record: FileRecord) -> None:
        """Show a complete file to its owner."""
        self._files[record.id] = record

    def delete(self, record: FileRecord) -> None:
        """Delete a file; content that a client is reading can be read to its end. Raises OSError, and keeps it then."""
        if record.id in self._files:
            self.discard(record.id, record.num_bytes)
            del self._files[record.id]

    def discard(self, file_id: str, num_bytes: int) -> None:
        """Remove the content of a file that has so many bytes counted, and its record if there is one."""
        self.path(file_id).unlink(missing_ok=True)
        self.path(file_id).with_suffix(".json").unlink(missing_ok=True)
        self.free(num_bytes)

    def delete_old(self, used: Collection[str]) -> None:
        """Delete the files beyond their age that no unfinished batch uses."""
        end = time.time() - self.config.seconds
        for record in [entry for entry in self._files.values() if entry.created_at < end and entry.id not in used]:
            try:
                self.delete(record)
            except OSError as error:
                logger.error("file %s is not deleted: %s", record.id, error)
