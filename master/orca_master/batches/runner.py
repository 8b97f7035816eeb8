"""`BatchRunner`: answers the lines of the unfinished batches, one batch at a time, the oldest first.

A line is sent like a request of its owner. Its answer is appended to the batch's files before the next line is sent in
its place, so a line that had none when the process ended is sent again, and one that had an answer is not.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from orca_master.batches.answer_files import AnswerFiles
from orca_master.batches.batch_store import BatchStore
from orca_master.batches.config import BatchConfig
from orca_master.batches.file_store import FileStore
from orca_master.batches.input_lines import BatchLine, InputLines, InvalidLine
from orca_master.batches.records import BatchRecord, FileRecord, Status
from orca_master.errors import RequestError

logger = logging.getLogger(__name__)

TEMPORARY = frozenset({429, 503})
"""Status codes after which a line is sent again: no answer to the request, but the state of the server."""
FIRST_WAIT_SECONDS = 0.5
MOST_WAIT_SECONDS = 15.0
SYNC_SECONDS = 1.0
"""Answers of so much time may be lost, and are then generated again, if the machine loses its power."""
CLEANING_SECONDS = 60.0
FILES_PER_BATCH = 2
"""Of answers and of errors."""


class LineAnswer(NamedTuple):
    """The response to a line: HTTP status, id and body, which is JSON."""

    status: int
    request_id: str
    body: bytes


Call = Callable[[str, str, bytes], Awaitable[LineAnswer]]
"""Sends a request: owner, route and body."""


class BatchRunner:
    """Answers batches until it is cancelled. `call` sends a request of a line."""

    def __init__(self, files: FileStore, batches: BatchStore, config: BatchConfig, call: Call) -> None:
        self._files, self._batches, self._config, self._call = files, batches, config, call
        self._wake = asyncio.Event()
        self._current: BatchRecord | None = None
        self._cancelled = asyncio.Event()
        self.num_running = 0
        """Lines that are being answered."""

    def wake(self) -> None:
        """Look for unfinished batches."""
        self._wake.set()

    def cancel(self, batch: BatchRecord) -> None:
        """Note that an unfinished batch is to be cancelled; one that has not begun is cancelled at once."""
        has_begun = batch is self._current or batch.status != "validating"
        batch.enter("cancelling")
        if not has_begun:
            batch.enter("cancelled")
            self._files.num_promised -= FILES_PER_BATCH
        elif batch is self._current:
            self._cancelled.set()
        self.wake()

    async def run(self) -> None:
        """Answer batches forever, and delete what is too old.

        Cancellation abandons the lines that are being answered.
        """
        while True:
            self._wake.clear()
            if unfinished := self._batches.unfinished:
                # Cancelled ones first: they only end.
                batch = min(unfinished, key=lambda batch: batch.status != "cancelling")
                try:
                    await self._answer(batch)
                except OSError as error:
                    logger.error("batch %s cannot be ended: %s", batch.id, error)
                    await asyncio.sleep(CLEANING_SECONDS)
                continue
            self._files.delete_old(self._batches.used_files)
            self._batches.delete_old()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CLEANING_SECONDS):
                    await self._wake.wait()

    async def _answer(self, batch: BatchRecord) -> None:
        """Answer a batch to its end, whatever that is; an unexpected error fails the batch, not the others.

        Raises OSError if the end cannot be stored.
        """
        self._current = batch
        self._cancelled.clear()
        try:
            await self._answer_lines(batch)
        except (RequestError, OSError) as error:
            logger.warning("batch %s failed: %s", batch.id, error)
            batch.failure = str(error) if isinstance(error, RequestError) else f"the server's disk: {error.strerror}"
            await self._end(batch, "failed")
        except Exception as error:
            logger.exception("batch %s failed", batch.id)
            batch.failure = f"internal error: {type(error).__name__}"
            await self._end(batch, "failed")
        finally:
            self._current = None

    async def _answer_lines(self, batch: BatchRecord) -> None:
        """Send all lines without an answer, until the batch expires or is cancelled, and end the batch."""
        if self._files.get(batch.owner, batch.input_file_id) is None:
            raise RequestError("input_file_id: the file no longer exists")
        if batch.status == "validating":
            batch.enter("in_progress")
            await self._batches.write(batch)
        paths = (self._files.path(batch.output_id), self._files.path(batch.error_id))
        answers = await asyncio.to_thread(AnswerFiles, batch.id, *paths, self._files.take)
        try:
            self._files.free(answers.output.num_dropped + answers.errors.num_dropped)
            _count(batch, answers)
            with self._lines_of(batch) as lines:
                ending = await self._send_lines(batch, lines, answers)
            await asyncio.to_thread(answers.sync)
        finally:
            answers.close()
        await self._end(batch, ending)

    async def _send_lines(self, batch: BatchRecord, lines: InputLines, answers: AnswerFiles) -> Status:
        """Answer the lines; return the status with which the batch ends."""
        if batch.status == "cancelling":
            return "cancelled"
        work = asyncio.create_task(self._send_all(batch, lines, answers))
        cancelled = asyncio.create_task(self._cancelled.wait())
        left = batch.expires_at - time.time()
        try:
            await asyncio.wait({work, cancelled}, timeout=max(0.0, left), return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                work.result()
                return "completed"
        finally:
            work.cancel()
            cancelled.cancel()
            await asyncio.gather(work, cancelled, return_exceptions=True)
        if self._cancelled.is_set():
            return "cancelled"
        await self._expire(batch, answers)
        return "expired"

    async def _send_all(self, batch: BatchRecord, lines: InputLines, answers: AnswerFiles) -> None:
        async def sender() -> None:
            while (line := await lines.next()) is not None:  # all senders share the lines
                if line.number not in answers.answered:
                    await self._send(batch, line, answers)
                    _count(batch, answers)

        async def sync() -> None:
            while True:
                await asyncio.sleep(SYNC_SECONDS)
                await asyncio.to_thread(answers.sync)

        syncing = asyncio.create_task(sync())
        senders = [asyncio.create_task(sender()) for _ in range(self._config.concurrency)]
        try:
            await asyncio.gather(*senders)
        finally:
            for task in (syncing, *senders):
                task.cancel()
            await asyncio.gather(syncing, *senders, return_exceptions=True)

    async def _send(self, batch: BatchRecord, line: BatchLine | InvalidLine, answers: AnswerFiles) -> None:
        if isinstance(line, InvalidLine):
            answers.add_error(line.number, line.custom_id, "invalid_line", line.message)
            return
        wait = FIRST_WAIT_SECONDS
        while True:
            self.num_running += 1
            try:
                answer = await self._call(batch.owner, batch.endpoint, line.body)
            finally:
                self.num_running -= 1
            if answer.status not in TEMPORARY:
                answers.add_response(line.number, line.custom_id, *answer)
                return
            await asyncio.sleep(wait)
            wait = min(2 * wait, MOST_WAIT_SECONDS)

    async def _expire(self, batch: BatchRecord, answers: AnswerFiles) -> None:
        """Write an error for each line without an answer."""
        with self._lines_of(batch) as lines:
            while (line := await lines.next()) is not None:
                if line.number not in answers.answered:
                    answers.add_error(
                        line.number, line.custom_id, "batch_expired", "the batch was not finished within 24 hours"
                    )
        _count(batch, answers)

    def _lines_of(self, batch: BatchRecord) -> InputLines:
        return InputLines(self._files.path(batch.input_file_id), batch.endpoint, self._config.max_line_bytes)

    async def _end(self, batch: BatchRecord, ending: Status) -> None:
        """Show the files of the answers to the owner, and give the batch its final status."""
        if ending == "completed":
            batch.enter("finalizing")
            await self._batches.write(batch)
        batch.has_output = await self._show(batch, batch.output_id, "output", batch.completed)
        batch.has_errors = await self._show(batch, batch.error_id, "error", batch.failed)
        before = batch.status
        batch.enter(ending)
        self._files.num_promised -= FILES_PER_BATCH
        try:
            await self._batches.write(batch)
        except OSError:
            batch.status = before
            self._files.num_promised += FILES_PER_BATCH
            raise

    async def _show(self, batch: BatchRecord, file_id: str, kind: str, num_lines: int) -> bool:
        """Make a file of answers one of the owner's; remove it and return False if it is empty."""
        path = self._files.path(file_id)
        num_bytes = path.stat().st_size if path.exists() else 0
        if not num_bytes:
            self._files.discard(file_id, 0)
            return False
        name = f"{batch.id}_{kind}.jsonl"
        record = FileRecord(file_id, batch.owner, name, "batch_output", num_bytes, num_lines, int(time.time()))
        await asyncio.to_thread(self._files.write_record, record)
        self._files.add(record)
        return True


def _count(batch: BatchRecord, answers: AnswerFiles) -> None:
    batch.completed, batch.failed = len(answers.output.numbers), len(answers.errors.numbers)
