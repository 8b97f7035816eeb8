"""`Places`: the answers of batches that are generated at a time. Those who wait get places in the order of asking."""

from __future__ import annotations

import asyncio


class Places:
    """`count` places, `num_taken` of which are taken."""

    def __init__(self, count: int) -> None:
        self.num_taken = 0
        self._free = asyncio.Semaphore(count)
        self._turn = asyncio.Lock()

    async def take(self, count: int) -> None:
        """Wait for `count` places, at most as many as there are; the caller gives them back, unless cancelled here."""
        async with self._turn:
            num_missing = count  # InputLines refuses a line of more choices than there are places
            try:
                while num_missing:
                    await self._free.acquire()
                    num_missing -= 1
            except BaseException:
                self._release(count - num_missing)
                raise
        self.num_taken += count

    def give(self, count: int) -> None:
        """Give places back."""
        self.num_taken -= count
        self._release(count)

    def _release(self, count: int) -> None:
        for _ in range(count):
            self._free.release()
