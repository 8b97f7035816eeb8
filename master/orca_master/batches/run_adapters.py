"""`RunAdapters`: the adapters (LoRA) that the lines of a batch name as their model, also after the end of a master.

Adapters that are loaded at run time are lost with the master. The record of a batch therefore has those of its owner,
and the next master loads one again when the first line that is left names it, unless the owner has loaded an adapter of
this name since.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from orca_master.batches.batch_store import BatchStore
from orca_master.batches.input_lines import BatchLine, InvalidLine
from orca_master.batches.records import BatchRecord
from orca_master.errors import EngineUnavailableError, RequestError
from orca_master.journal.records import AdapterFiles

logger = logging.getLogger(__name__)

RETRY_SECONDS = 1.0
"""While the engine has ended: then the server ends, too."""


class LineAdapters(Protocol):
    """The adapters of the calls that send lines."""

    def loaded_by(self, owner: str) -> dict[str, AdapterFiles]:
        """Return the adapters that requests of an owner may use, by name, without those of the start."""

    def restored(self, owner: str, files: AdapterFiles) -> AbstractAsyncContextManager[None]:
        """Let the lines of an owner use an adapter by its name for the length of the block. At most one run per owner.

        Raises RequestError if the adapter is refused, EngineUnavailableError when the engine has ended.
        """


class RunAdapters:
    """The adapters of one run of a batch. `is_earlier`: an earlier master began the batch."""

    def __init__(self, batch: BatchRecord, batches: BatchStore, adapters: LineAdapters, is_earlier: bool) -> None:
        self._batch, self._batches, self._adapters = batch, batches, adapters
        self._earlier = dict(batch.adapters) if is_earlier else {}
        self._held = contextlib.AsyncExitStack()
        self._refusals: dict[str, str | None] = {}
        """By name of an adapter of the earlier master: why it is refused, None if it is loaded."""

    async def ready(self, line: BatchLine) -> BatchLine | InvalidLine:
        """Return a line when it can be sent, or its error if its adapter cannot be loaded again. Raises OSError."""
        loaded = self._adapters.loaded_by(self._batch.owner)
        await self._batches.set_adapters(self._batch, self._earlier | loaded)
        if line.model not in self._earlier or line.model in loaded:
            return line
        if line.model not in self._refusals:
            self._refusals[line.model] = await self._restore(self._earlier[line.model])
        refusal = self._refusals[line.model]
        if refusal is None:
            return line
        message = f"model: the adapter {line.model!r} could not be loaded again after the master's end: {refusal}"
        return InvalidLine(line.number, line.custom_id, message, "model_not_found")

    async def close(self) -> None:
        """Let the adapters leave that were loaded again."""
        await self._held.aclose()

    async def _restore(self, files: AdapterFiles) -> str | None:
        """Load an adapter until `close`; return why it is refused, None if it is loaded."""
        while True:
            try:
                await self._held.enter_async_context(self._adapters.restored(self._batch.owner, files))
                return None
            except EngineUnavailableError:
                await asyncio.sleep(RETRY_SECONDS)
            except Exception as error:
                unexpected = not isinstance(error, RequestError)
                text = "batch %s: adapter %r is not loaded again: %s"
                logger.warning(text, self._batch.id, files.name, error, exc_info=unexpected)
                return str(error)
