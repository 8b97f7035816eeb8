"""`BatchRun`: answers the lines of one batch to its end.

A line is sent like a request of its owner, and takes a place for each choice of the request (places.py). Its answer is
appended to the batch's files before the next line is sent in its place, so a line that had none when the process ended
is sent again, and one that had an answer is not.
"""

from __future__ import annotations

import asyncio
import errno
import functools
import logging
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

from orca_master.batches.answer_files import AnswerFiles
from orca_master.batches.batch_store import BatchStore
from orca_master.batches.config import BatchConfig
from orca_master.batches.file_store import FileStore
from orca_master.batches.input_lines import BatchLine, InputLines, InvalidLine
from orca_master.batches.places import Places
from orca_master.batches.records import BatchRecord, FileRecord, Status
from orca_master.batches.run_adapters import LineAdapters, RunAdapters
from orca_master.errors import RequestError

logger = logging.getLogger(__name__)

RETRIED_STATUSES = frozenset({429, 503})
"""Status codes after which a line is sent again: no answer to the request, but the state of the server."""
FIRST_WAIT_SECONDS = 0.5
MOST_WAIT_SECONDS = 15.0
SYNC_SECONDS = 1.0
"""Answers of so much time may be lost, and are then generated again, if the machine loses its power."""
END_SECONDS = 15.0
"""Between attempts to store the end of a batch."""
FILES_PER_BATCH = 2
"""Of answers and of errors."""
Written = TypeVar("Written")
FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
"""Errors of a disk that has room again when somebody has deleted files."""


class LineAnswer(NamedTuple):
    """The response to a line: HTTP status, id and body, which is JSON."""

    status: int
    request_id: str
    body: bytes


class LineCalls(LineAdapters, Protocol):
    """Sends the requests of lines."""

    async def call(self, owner: str, path: str, body: bytes) -> LineAnswer:
        """Send `body` to a route as the owner of a key; cancellation is the client's disconnection."""


class BatchRun:
    """Answers `batch`; `calls` sends the request of a line, while it has its places. `adapters`: those of the lines.

    `cancelled`: set to end the batch with its answers so far.
    """

    def __init__(
        self,
        batch: BatchRecord,
        files: FileStore,
        batches: BatchStore,
        config: BatchConfig,
        calls: LineCalls,
        places: Places,
        adapters: RunAdapters,
    ) -> None:
        self._places, self._adapters = places, adapters
        self._batch, self._files, self._batches, self._config, self._calls = batch, files, batches, config, calls
        self.owner = batch.owner
        self.cancelled = asyncio.Event()

    async def run(self) -> None:
        """Answer the batch to its end, whatever that is; an unexpected error fails the batch.

        The end is tried again until it is on the disk. Cancellation abandons the lines that are being answered.
        """
        batch = self._batch
        try:
            ending = await self._with_room(self._answer_lines, ())
        except (RequestError, OSError) as error:
            logger.warning("batch %s failed: %s", batch.id, error)
            ending = "failed"
            batch.failure = str(error) if isinstance(error, RequestError) else f"the server's disk: {error.strerror}"
        except Exception as error:
            logger.exception("batch %s failed", batch.id)
            ending = "failed"
            batch.failure = f"internal error: {type(error).__name__}"
        while batch.is_unfinished:
            try:
                await self._end(ending)
            except OSError as error:
                logger.error("batch %s cannot be ended: %s", batch.id, error)
                await asyncio.sleep(END_SECONDS)

    async def _answer_lines(self) -> Status:
        """Send all lines without an answer, until the batch expires or is cancelled; return its final status.

        If the disk has no room for answers that were written, they are removed and the OSError is raised.
        """
        batch, threads = self._batch, self._files.threads
        if self._files.get(batch.owner, batch.input_file_id) is None:
            raise RequestError("input_file_id: the file no longer exists")
        await self._with_room(lambda: self._batches.enter(batch, "in_progress", ("validating",)))
        answers = await self._with_room(self._open_answers)
        try:
            self._count(answers)
            with self._open_lines() as lines:
                ending = await self._send_lines(lines, answers)
            await threads.run(answers.sync)
        except OSError as error:
            if error.errno in FULL:
                await self._with_room(answers.drop_unsynced)
            raise
        finally:
            self._count(answers)  # also what was being written when the batch was cancelled or failed
            await self._adapters.close()
            answers.close()
        return ending

    async def _open_answers(self) -> AnswerFiles:
        """Open the files of answers; bytes that this removes are room again, also if it fails. Raises OSError."""
        batch, files = self._batch, self._files
        paths = (files.path(batch.output_id), files.path(batch.error_id))
        before = sum(map(size_of, paths))
        try:
            return await files.threads.run(AnswerFiles, batch.id, *paths, files.threads, files.room, batch.owner)
        finally:
            files.room.add(batch.owner, sum(map(size_of, paths)) - before)

    async def _send_lines(self, lines: InputLines, answers: AnswerFiles) -> Status:
        """Answer the lines; return the status with which the batch ends."""
        if self._batch.status == "cancelling":
            return "cancelled"
        work = asyncio.create_task(self._send_all(lines, answers))
        cancelled = asyncio.create_task(self.cancelled.wait())
        left = self._batch.expires_at - time.time()
        try:
            await asyncio.wait({work, cancelled}, timeout=max(0.0, left), return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                work.result()
                return "completed"
        finally:
            work.cancel()
            cancelled.cancel()
            await asyncio.gather(work, cancelled, return_exceptions=True)
        if self.cancelled.is_set():
            return "cancelled"
        await self._expire(answers)
        return "expired"

    async def _send_all(self, lines: InputLines, answers: AnswerFiles) -> None:
        turn = asyncio.Lock()

        async def next_line() -> tuple[BatchLine | InvalidLine | None, int]:
            """Return the next line with its places: one line of a batch waits for them, the others are not read yet."""
            async with turn:
                line = await lines.next()
                while line is not None and line.number in answers:
                    line = await lines.next()
                if isinstance(line, BatchLine):
                    line = await self._adapters.ready(line)
                num_places = line.num_choices if isinstance(line, BatchLine) else 0
                await self._places.take(num_places)
                return line, num_places

        async def sender() -> None:
            while True:
                line, num_places = await next_line()
                if line is None:
                    return
                try:
                    answer = await self._send(line) if isinstance(line, BatchLine) else None
                finally:
                    self._places.give(num_places)
                await self._write(line, answer, answers)
                self._count(answers)

        async def sync() -> None:
            while True:
                await asyncio.sleep(SYNC_SECONDS)
                await self._files.threads.run(answers.sync)

        syncing = asyncio.create_task(sync())
        senders = [asyncio.create_task(sender()) for _ in range(self._config.concurrency)]
        all_sent = asyncio.gather(*senders)
        try:
            waited: set[asyncio.Future[Any]] = {all_sent, syncing}
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
            if syncing.done():  # an error of the disk
                syncing.result()
            all_sent.result()
        finally:
            for task in (syncing, *senders):
                task.cancel()
            await asyncio.gather(syncing, all_sent, *senders, return_exceptions=True)

    async def _send(self, line: BatchLine) -> LineAnswer:
        """Return the answer to a line."""
        wait, endpoint = FIRST_WAIT_SECONDS, self._batch.endpoint
        while True:
            await self._adapters.record()
            answer = await self._calls.call(self.owner, endpoint, line.body)
            if answer.status not in RETRIED_STATUSES:
                return answer
            await asyncio.sleep(wait)
            wait = min(2 * wait, MOST_WAIT_SECONDS)

    async def _write(self, line: BatchLine | InvalidLine, answer: LineAnswer | None, answers: AnswerFiles) -> None:
        """Append the answer to a line. `answer`: of a BatchLine, None for an InvalidLine."""
        if isinstance(line, InvalidLine):
            add = functools.partial(answers.add_error, line.number, line.custom_id, line.code, line.message)
        else:
            assert answer is not None, "each request has an answer"
            add = functools.partial(answers.add_response, line.number, line.custom_id, *answer)
        await self._with_room(add)

    async def _with_room(
        self, write: Callable[[], Awaitable[Written]], refusals: tuple[type[Exception], ...] = (RequestError,)
    ) -> Written:
        """Return what `write` returns; while the disk has no room for it, or it raises one of `refusals`, try again.

        Raises the other errors.
        """
        wait = FIRST_WAIT_SECONDS
        while True:
            try:
                return await write()
            except Exception as error:
                is_full = isinstance(error, OSError) and error.errno in FULL
                if not is_full and not isinstance(error, refusals):
                    raise
                logger.warning("batch %s waits: %s", self._batch.id, error)
            await asyncio.sleep(wait)
            wait = min(2 * wait, MOST_WAIT_SECONDS)

    async def _expire(self, answers: AnswerFiles) -> None:
        """Write an error for each line without an answer.

        Raises RequestError if there is no room: the batch fails then.
        """
        with self._open_lines() as lines:
            while (line := await lines.next()) is not None:
                if line.number not in answers:
                    error = "batch_expired", "the batch was not finished within 24 hours"
                    await self._with_room(functools.partial(answers.add_error, line.number, line.custom_id, *error), ())
        self._count(answers)

    def _open_lines(self) -> InputLines:
        path = self._files.path(self._batch.input_file_id)
        return InputLines(
            path, self._batch.endpoint, self._config.max_line_bytes, self._config.concurrency, self._files.threads
        )

    async def _end(self, ending: Status) -> None:
        """Show the files of the answers to the owner, and give the batch its final status. Raises OSError."""
        batch = self._batch
        if ending == "completed":
            await self._batches.enter(batch, "finalizing")
        batch.has_output = await self._show(batch.output_id, "output", batch.completed)
        batch.has_errors = await self._show(batch.error_id, "error", batch.failed)
        await self._batches.enter(batch, ending)
        self._files.places.add(batch.owner, -FILES_PER_BATCH)
        logger.info("batch %s: %s, %d of %d lines answered", batch.id, ending, batch.completed, batch.total)

    async def _show(self, file_id: str, kind: str, num_lines: int) -> bool:
        """Make a file of answers one of the owner's; remove it and return False if it is empty."""
        if not (num_bytes := size_of(self._files.path(file_id))):
            await self._files.discard(self.owner, file_id, 0)
            return False
        name = f"{self._batch.id}_{kind}.jsonl"
        record = FileRecord(file_id, self.owner, name, "batch_output", num_bytes, num_lines, int(time.time()))
        await self._files.threads.run(self._files.write_record, record)
        self._files.add(record)
        return True

    def _count(self, answers: AnswerFiles) -> None:
        self._batch.completed, self._batch.failed = len(answers.output.numbers), len(answers.errors.numbers)


def size_of(path: Path) -> int:
    """Return the bytes of a file, 0 if there is none."""
    return path.stat().st_size if path.exists() else 0
