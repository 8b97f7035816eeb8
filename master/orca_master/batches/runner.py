"""`BatchRunner`: chooses which batches are answered: the oldest of each API key, which share the places of lines."""

from __future__ import annotations

import asyncio
import contextlib
import logging

from orca_master.batches.batch_run import BatchRun, LineCalls
from orca_master.batches.batch_store import BatchStore
from orca_master.batches.config import BatchConfig
from orca_master.batches.file_store import FileStore
from orca_master.batches.places import Places
from orca_master.batches.records import BatchRecord
from orca_master.batches.run_adapters import RunAdapters

logger = logging.getLogger(__name__)

CLEANING_SECONDS = 60.0
MOST_AT_A_TIME = 16
"""Batches that are answered; those of further keys wait."""


class BatchRunner:
    """Answers batches until it is cancelled. `calls` sends the requests of lines.

    At most `config.concurrency` choices are generated at a time. The waiting lines of all batches take turns.
    """

    def __init__(self, files: FileStore, batches: BatchStore, config: BatchConfig, calls: LineCalls) -> None:
        self._files, self._batches, self._config, self._calls = files, batches, config, calls
        self._wake = asyncio.Event()
        self.places = Places(config.concurrency)
        self._runs: dict[str, BatchRun] = {}
        """Of the batches that are being answered."""

    def wake(self) -> None:
        """Look for unfinished batches."""
        self._wake.set()

    def cancel(self, batch: BatchRecord) -> None:
        """End a batch of the status `cancelling`."""
        if batch.id in self._runs:
            self._runs[batch.id].cancelled.set()
        self.wake()

    async def run(self) -> None:
        """Answer batches forever, and delete what is too old.

        Cancellation abandons the lines that are being answered.
        """
        tasks = set[asyncio.Task[None]]()
        try:
            while True:
                self._wake.clear()
                for batch in self._next():
                    run = self._runs[batch.id] = self._run_of(batch)
                    tasks.add(task := asyncio.create_task(self._finish(batch, run)))
                    task.add_done_callback(tasks.discard)
                try:
                    await self._files.delete_old(lambda: self._batches.used_files)
                    await self._batches.delete_old()
                except Exception:  # batches are answered nevertheless
                    logger.exception("old files and batches are not deleted")
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(CLEANING_SECONDS):
                        await self._wake.wait()
        finally:
            running = list(tasks)
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    def _next(self) -> list[BatchRecord]:
        """Return the batches to begin: of each owner without a running one the oldest, and those to be cancelled."""
        owners = {run.owner for run in self._runs.values()}
        batches: list[BatchRecord] = []
        for batch in self._batches.unfinished:
            if batch.id in self._runs:
                continue
            if batch.status == "cancelling":
                may_begin = len(self._runs) + len(batches) < 2 * MOST_AT_A_TIME
            else:
                may_begin = batch.owner not in owners and len(owners) < MOST_AT_A_TIME
                owners.update([batch.owner] if may_begin else [])
            batches += [batch] if may_begin else []
        return batches

    def _run_of(self, batch: BatchRecord) -> BatchRun:
        adapters = RunAdapters(batch, self._batches, self._calls, batch.id in self._batches.earlier)
        return BatchRun(batch, self._files, self._batches, self._config, self._calls, self.places, adapters)

    async def _finish(self, batch: BatchRecord, run: BatchRun) -> None:
        try:
            await run.run()
        except Exception:
            logger.exception("batch %s cannot be ended", batch.id)
            await asyncio.sleep(CLEANING_SECONDS)
        finally:
            del self._runs[batch.id]
            self.wake()
