"""`Restorer`: an AdapterRestorer with one adapter, whose calls and answers a test sets and reads."""

from __future__ import annotations

import asyncio

from orca_master.endpoint.restored_adapters import RestoredAdapters
from orca_master.engine.adapter_registry import RuntimeAdapter
from orca_master.journal.records import AdapterFiles

FILES = AdapterFiles("loaded", "/d/loaded", "abc")
LOADED = RuntimeAdapter(FILES.name, 2, "key", FILES.folder, FILES.digest)
RESTORED_NUMBER = 7
NO_ADAPTERS = RestoredAdapters(None, lambda: False)
"""Of a server without --enable-runtime-adapters."""


class Restorer:
    """Has LOADED. `answers`: of the next calls of `restore`, then RESTORED_NUMBER; `gate` holds the calls."""

    def __init__(self, *answers: Exception) -> None:
        self.calls: list[tuple[str, ...]] = []
        self.released: list[int] = []
        self.gate: asyncio.Event | None = None
        self._answers = list(answers)

    def of_number(self, number: int) -> RuntimeAdapter | None:
        return LOADED if number == LOADED.number else None

    async def restore(self, *arguments: str) -> int:
        self.calls.append(arguments)
        if self.gate is not None:
            await self.gate.wait()
        if self._answers:
            raise self._answers.pop(0)
        return RESTORED_NUMBER

    def release(self, number: int) -> None:
        self.released.append(number)
