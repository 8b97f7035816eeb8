"""`AdapterLoader`: how the endpoint loads and unloads adapters; `EngineAdapters`: those of an engine on its thread."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:  # API processes import this module and must not load gRPC
    from orca_master.engine.engine_thread import EngineThread


class AdapterLoader(Protocol):
    """Loads and unloads adapters of one owner (digest of an API key, "" without keys)."""

    async def load(self, name: str, path: str, owner: str) -> None:
        """See RuntimeAdapters.load."""

    async def unload(self, name: str, owner: str) -> None:
        """See RuntimeAdapters.unload."""


class EngineAdapters:
    """See AdapterLoader. A change goes on if its caller is cancelled, because workers have begun it."""

    def __init__(self, engine: EngineThread) -> None:
        self._engine = engine

    async def load(self, name: str, path: str, owner: str) -> None:
        """See AdapterLoader."""
        await asyncio.shield(self._engine.on_engine(lambda: self._engine.engine.adapters.load(name, path, owner)))

    async def unload(self, name: str, owner: str) -> None:
        """See AdapterLoader."""
        await asyncio.shield(self._engine.on_engine(lambda: self._engine.engine.adapters.unload(name, owner)))
