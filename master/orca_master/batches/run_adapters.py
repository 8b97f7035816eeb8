"""`RunAdapters`: the adapters (LoRA) that the lines of a batch name as their model, also after the end of a master.

Adapters that are loaded at run time are lost with the master. The record of a batch therefore has those of its owner,
and the next master loads one again when the first line that is left names it, unless a model or an adapter is served
to the owner under this name.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Collection, Container
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from orca_master.batches.batch_store import BatchStore
from orca_master.batches.input_lines import BatchLine, InvalidLine
from orca_master.batches.records import BatchRecord
from orca_master.errors import ADAPTER_LIMIT, EngineUnavailableError, RequestError
from orca_master.journal.records import AdapterFiles

logger = logging.getLogger(__name__)

RETRY_SECONDS = 1.0
"""While other adapters leave no place for one, and while the engine has ended: then the server ends, too."""


class LineAdapters(Protocol):
    """The adapters of the calls that send lines."""

    def served_to(self, owner: str) -> Container[str]:
        """Return the names that requests of an owner may use as their model."""

    def loaded_by(self, owner: str) -> dict[str, AdapterFiles]:
        """Return the adapters that an owner has loaded at run time, by name."""

    def restored(self, owner: str, files: AdapterFiles) -> AbstractAsyncContextManager[None]:
        """Let the lines of an owner use an adapter by its name for the length of the block. At most one run per owner.

        Raises RequestError if the adapter is refused, with the code ADAPTER_LIMIT while it has no place, and
        EngineUnavailableError when the engine has ended.
        """


class RunAdapters:
    """The adapters of one run of a batch. `is_earlier`: an earlier master began the batch."""

    def __init__(self, batch: BatchRecord, batches: BatchStore, adapters: LineAdapters, is_earlier: bool) -> None:
        self._batch, self._batches, self._adapters = batch, batches, adapters
        self._earlier = dict(batch.adapters) if is_earlier else {}
        """Those of earlier masters, without names under which the owner has loaded an adapter since."""
        self._restored: dict[str, contextlib.AsyncExitStack] = {}
        """By name: holds an adapter that was loaded again."""
        self._refusals: dict[str, str] = {}
        """By name: why an adapter is not loaded again."""

    async def ready(self, line: BatchLine) -> BatchLine | InvalidLine:
        """Return a line when it can be sent, or its error if its adapter cannot be loaded again.

        While no pipeline serves, or other adapters leave no place, it waits: to the end of the run at most.
        """
        name = line.model
        await self._forget(self._adapters.loaded_by(self._batch.owner))
        if name not in self._earlier or name in self._adapters.served_to(self._batch.owner):
            return line
        if name not in self._restored and name not in self._refusals:
            await self._restore(self._earlier[name])
        if name not in self._refusals:
            return line
        message = f"model: the adapter {name!r} could not be loaded again after the master's end: "
        return InvalidLine(line.number, line.custom_id, message + self._refusals[name], "model_not_found")

    async def record(self) -> None:
        """Record the adapters that a line may use which is sent now. If the disk fails, the next call tries again."""
        loaded = self._adapters.loaded_by(self._batch.owner)
        await self._forget(loaded)
        try:
            await self._batches.set_adapters(self._batch, self._earlier | loaded)
        except OSError as error:
            logger.warning("batch %s: its adapters are not recorded: %s", self._batch.id, error)

    async def close(self) -> None:
        """Let the adapters leave that were loaded again."""
        for name in list(self._restored):
            await self._restored.pop(name).aclose()

    async def _forget(self, names: Collection[str]) -> None:
        """Forget the adapters of earlier masters with these names."""
        for name in self._earlier.keys() & set(names):
            self._earlier.pop(name, None)
            if name in self._restored:
                await self._restored.pop(name).aclose()

    async def _restore(self, files: AdapterFiles) -> None:
        """Load an adapter until `close`, or note why it is refused."""
        while True:
            stack = contextlib.AsyncExitStack()
            try:
                await stack.enter_async_context(self._adapters.restored(self._batch.owner, files))
                self._restored[files.name] = stack
                return
            except Exception as error:
                if not _may_pass(error):
                    self._refuse(files.name, error)
                    return
                logger.info("batch %s waits for the adapter %r: %s", self._batch.id, files.name, error)
            await asyncio.sleep(RETRY_SECONDS)

    def _refuse(self, name: str, error: Exception) -> None:
        self._refusals[name] = str(error)
        unexpected = not isinstance(error, RequestError)
        text = "batch %s: adapter %r is not loaded again: %s"
        logger.warning(text, self._batch.id, name, error, exc_info=unexpected)


def _may_pass(error: Exception) -> bool:
    """Return True for an error after which another attempt may succeed."""
    is_full = isinstance(error, RequestError) and error.code == ADAPTER_LIMIT
    return is_full or isinstance(error, EngineUnavailableError)
