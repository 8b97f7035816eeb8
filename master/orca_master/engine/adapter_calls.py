"""How the endpoint loads, unloads and restores adapters; `EngineAdapters`: those of an engine on its thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from orca_master.engine.adapter_registry import RuntimeAdapter

if TYPE_CHECKING:  # API processes import this module and must not load gRPC
    from orca_master.engine.engine_thread import EngineThread


class AdapterLoader(Protocol):
    """Loads and unloads adapters of one owner (digest of an API key, "" without keys)."""

    async def load(self, name: str, path: str, owner: str) -> None:
        """See RuntimeAdapters.load."""

    async def unload(self, name: str, owner: str) -> None:
        """See RuntimeAdapters.unload."""


class AdapterRestorer(Protocol):
    """The adapters that were loaded at run time, for the requests in the journal."""

    def of_number(self, number: int) -> RuntimeAdapter | None:
        """Return the adapter of a request, None if it has left."""

    async def restore(self, name: str, path: str, owner: str, digest: str) -> int:
        """See RuntimeAdapters.restore."""

    def release(self, number: int) -> None:
        """See RuntimeAdapters.release. Not after the engine's end."""


class EngineAdapters:
    """An AdapterLoader and AdapterRestorer. A change goes on if its caller is cancelled: workers have begun it.

    `is_valid`: whether a key with a digest is valid. A load first unloads the adapters of keys that are not any more.
    """

    def __init__(self, engine: EngineThread, is_valid: Callable[[str], bool]) -> None:
        self._engine = engine
        self._is_valid = is_valid

    async def load(self, name: str, path: str, owner: str) -> None:
        """See AdapterLoader."""
        owners = {adapter.owner for adapter in self._engine.engine.snapshot.adapters} - {"", owner}
        gone = frozenset(other for other in owners if not self._is_valid(other))

        async def change() -> None:
            self._engine.engine.adapters.unload_all_of(gone)
            await self._engine.engine.adapters.load(name, path, owner)

        await asyncio.shield(self._engine.on_engine(change))

    def of_number(self, number: int) -> RuntimeAdapter | None:
        """See AdapterRestorer."""
        return self._engine.engine.adapters.registry.of_number(number)

    async def restore(self, name: str, path: str, owner: str, digest: str) -> int:
        """See AdapterRestorer."""
        adapters = self._engine.engine.adapters
        return await asyncio.shield(self._engine.on_engine(lambda: adapters.restore(name, path, owner, digest)))

    def release(self, number: int) -> None:
        """See AdapterRestorer."""

        async def change() -> None:
            self._engine.engine.adapters.release(number)

        self._engine.on_engine(change)  # nobody waits for it

    async def unload(self, name: str, owner: str) -> None:
        """See AdapterLoader."""
        await asyncio.shield(self._engine.on_engine(lambda: self._engine.engine.adapters.unload(name, owner)))
