"""`Upload`: a file that a client sends, written to the disk as it comes."""

from __future__ import annotations

import os
import time
from typing import IO

from orca_master.batches.config import BatchConfig
from orca_master.batches.file_store import FileStore
from orca_master.batches.records import FileRecord, new_file_id
from orca_master.errors import RequestError


class FileTooLargeError(Exception):
    """A file of more bytes than one may have (HTTP 413)."""


class Upload:
    """An asynchronous context manager; a file that is not finished is removed at its exit. Entry raises OSError."""

    def __init__(self, files: FileStore, owner: str) -> None:
        self._files, self._config, self._owner = files, files.config, owner
        self._id = new_file_id()
        self._file: IO[bytes]
        self._num_bytes = 0
        self._lines = LineCounter(files.config)
        self._record: FileRecord | None = None

    async def __aenter__(self) -> Upload:
        self._file = await self._files.threads.run(self._open)
        return self

    def _open(self) -> IO[bytes]:
        return open(os.open(self._files.path(self._id), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")

    async def __aexit__(self, *_: object) -> None:
        if self._record is None:
            try:
                await self._files.threads.run(self._file.close)
            finally:
                await self._files.discard(self._owner, self._id, self._num_bytes)

    async def write(self, data: bytes) -> None:
        """Append a part; raise FileTooLargeError, RequestError at another limit, OSError if the disk is full."""
        if self._num_bytes + len(data) > self._config.max_file_bytes:
            raise FileTooLargeError(
                f"file: it exceeds {self._config.max_file_bytes} bytes (--max-batch-file-bytes): send several"
            )
        self._files.room.take(self._owner, len(data))
        self._num_bytes += len(data)
        await self._files.threads.run(self._write, data)

    def _write(self, data: bytes) -> None:
        self._lines.feed(data)
        self._file.write(data)

    async def finish(self, filename: str) -> FileRecord:
        """Store the file and return its record; raise RequestError if it has no line."""
        num_lines = self._lines.end()
        if not num_lines:
            raise RequestError("file: it has no line: a request per line is expected", "file")
        record = FileRecord(self._id, self._owner, filename, "batch", self._num_bytes, num_lines, int(time.time()))
        await self._files.threads.run(self._finish, record)
        self._record = record
        self._files.add(record)
        return record

    def _finish(self, record: FileRecord) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        self._files.write_record(record)


class LineCounter:
    """Counts the lines, and checks their limits."""

    def __init__(self, config: BatchConfig) -> None:
        self._config = config
        self._num_lines = 0
        self._complete = 0
        """Lines that are not blank."""
        self._length = 0
        """Bytes of the unfinished line."""
        self._is_blank = True

    def feed(self, data: bytes) -> None:
        """Count a part of the file; raise RequestError for too many lines or a long one."""
        first, *others = data.split(b"\n")
        self._extend(first)
        for part in others:
            self._end_line()
            self._extend(part)

    def end(self) -> int:
        """End the file; return the number of lines that are not blank. Raises RequestError for too many lines."""
        if self._length:
            self._end_line()
        return self._complete

    def _end_line(self) -> None:
        self._num_lines += 1
        self._complete += not self._is_blank
        self._length, self._is_blank = 0, True
        if self._num_lines > self._config.max_lines:
            raise RequestError(f"file: it has more than {self._config.max_lines} lines (--max-batch-lines)", "file")

    def _extend(self, part: bytes) -> None:
        self._length += len(part)
        self._is_blank = self._is_blank and not part.strip()
        most = self._config.max_line_bytes
        if self._length > most:
            raise RequestError(
                f"file: line {self._num_lines + 1} exceeds {most} bytes (--max-batch-line-bytes)", "file"
            )
