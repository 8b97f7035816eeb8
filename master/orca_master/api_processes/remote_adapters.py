"""`RemoteAdapters`: the AdapterLoader of an API process; the master checks names and paths, and knows the adapters."""

from __future__ import annotations

from orca_master.api_processes.link_messages import LoadAdapter, UnloadAdapter
from orca_master.api_processes.remote_engine import RemoteEngine


class RemoteAdapters:
    """See AdapterLoader. The status with the changed adapters arrives before the answer."""

    def __init__(self, engine: RemoteEngine) -> None:
        self._engine = engine

    async def load(self, name: str, path: str, owner: str) -> None:
        """See AdapterLoader."""
        await self._engine.ask(lambda number: LoadAdapter(number, name, path, owner))

    async def unload(self, name: str, owner: str) -> None:
        """See AdapterLoader."""
        await self._engine.ask(lambda number: UnloadAdapter(number, name, owner))
