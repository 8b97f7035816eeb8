"""`AnswerFiles`: the output and the errors of a batch, to which lines are only appended.

The files themselves tell which lines of the input have an answer: the id of an answer ends with the number of its line.
A last line that a crash has cut off is removed, and all lines from the first one with a zero byte on. Their requests
are answered again.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import threading
from pathlib import Path
from typing import IO

from orca_master.batches.disk_threads import DiskThreads
from orca_master.batches.shares import Shares

ANSWER = re.compile(rb'\{"id": "batch_req_[0-9a-f]{32}_([0-9]{1,10})"')
"""The beginning of an answer; the group is the number of its line in the input."""

READ_BYTES = 1 << 20
"""Most bytes of a line that are in memory."""


class AnswerFile:
    """One file of answers. The bytes of new lines are taken from the `room` as those of `owner`."""

    def __init__(self, path: Path, threads: DiskThreads, room: Shares, owner: str) -> None:
        self.num_bytes = 0
        self.numbers: set[int] = set()
        """Numbers of the answered lines."""
        self._is_torn = False
        """True if a part of a line could not be removed: the disk was full for that, too."""
        self._num_synced = 0
        """Bytes that are on the disk."""
        self._threads, self._room, self._owner = threads, room, owner
        self._turn = asyncio.Lock()
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            with path.open("rb") as file:
                self._recover(file)
            os.ftruncate(self._descriptor, self.num_bytes)
            self.sync()
        except BaseException:
            self.close()
            raise

    def _recover(self, file: IO[bytes]) -> None:
        while answer := ANSWER.match(part := file.readline(READ_BYTES)):
            num_bytes = len(part)
            is_whole = b"\0" not in part
            while part and not part.endswith(b"\n"):
                part = file.readline(READ_BYTES)
                num_bytes += len(part)
                is_whole = is_whole and b"\0" not in part
            if not part or not is_whole:
                break  # after a loss of power a file can end with zeros, or have them in its last lines
            self.numbers.add(int(answer[1]))
            self.num_bytes += num_bytes

    async def append(self, number: int, line: bytes) -> None:
        """Write the answer to a line; raise RequestError without room, OSError; the file is as before then."""
        async with self._turn:
            self._room.take(self._owner, len(line))
            before = self.num_bytes
            try:
                await self._threads.run(self._append, number, line)
            finally:
                if self.num_bytes == before:
                    self._room.add(self._owner, -len(line))

    def _append(self, number: int, line: bytes) -> None:
        if self._is_torn:
            self._remove_part()
        try:
            left = memoryview(line)
            while left:
                left = left[os.write(self._descriptor, left) :]
        except OSError:
            self._is_torn = True
            self._remove_part()
            raise
        self.num_bytes += len(line)
        self.numbers.add(number)

    def _remove_part(self) -> None:
        os.ftruncate(self._descriptor, self.num_bytes)
        self._is_torn = False

    def sync(self) -> None:
        """Return when all lines are on the disk; called on a thread."""
        num_bytes = self.num_bytes
        os.fsync(self._descriptor)
        self._num_synced = num_bytes

    async def drop_unsynced(self) -> None:
        """Remove the lines since the last `sync`, which an error of it may have lost. Their `numbers` stay."""
        async with self._turn:
            await self._threads.run(os.ftruncate, self._descriptor, self._num_synced)
            self._room.add(self._owner, self._num_synced - self.num_bytes)
            self.num_bytes = self._num_synced

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)


class AnswerFiles:
    """The answers of the batch `batch_id`: those with status 200 in `output`, all others in `errors`."""

    def __init__(
        self, batch_id: str, output: Path, errors: Path, threads: DiskThreads, room: Shares, owner: str
    ) -> None:
        self._prefix = f"batch_req_{batch_id.removeprefix('batch_')}"
        self.output = AnswerFile(output, threads, room, owner)
        try:
            self.errors = AnswerFile(errors, threads, room, owner)
        except BaseException:
            self.output.close()
            raise
        self._turn = threading.Lock()
        self._sync_error: OSError | None = None

    def __contains__(self, number: int) -> bool:
        """Whether the line `number` has an answer; also one that was written after its writer was cancelled."""
        return number in self.output.numbers or number in self.errors.numbers

    async def add_response(self, number: int, custom_id: str, status: int, request_id: str, body: bytes) -> None:
        """Write the response to a line; `body` is JSON. Raises what AnswerFile.append raises."""
        if b"\n" in body:
            body = json.dumps(json.loads(body)).encode()
        head = f'{self._head(number, custom_id)}, "response": {{"status_code": {status}, "request_id": "{request_id}", '
        file = self.output if status == 200 else self.errors
        await file.append(number, b"".join((head.encode(), b'"body": ', body, b'}, "error": null}\n')))

    async def add_error(self, number: int, custom_id: str | None, code: str, message: str) -> None:
        """Write why a line has no response. Raises what AnswerFile.append raises."""
        error = json.dumps({"code": code, "message": message})
        await self.errors.append(
            number, f'{self._head(number, custom_id)}, "response": null, "error": {error}}}\n'.encode()
        )

    def sync(self) -> None:
        """Return when all answers are on the disk; called on threads. Raises OSError, from its first error on always.

        The system reports an error once, though what was written before it may be lost.
        """
        with self._turn:
            if self._sync_error is not None:
                raise self._sync_error
            try:
                self.output.sync()
                self.errors.sync()
            except OSError as error:
                self._sync_error = error
                raise

    async def drop_unsynced(self) -> None:
        """Remove the lines since the last `sync`, for files that are opened again. Raises OSError."""
        await self.output.drop_unsynced()
        await self.errors.drop_unsynced()

    def close(self) -> None:
        """Close both files."""
        self.output.close()
        self.errors.close()

    def _head(self, number: int, custom_id: str | None) -> str:
        return f'{{"id": "{self._prefix}_{number}", "custom_id": {json.dumps(custom_id)}'
