"""`Turns`: bounds the number of concurrent passes.

All passes share the event loop and the threads that call the API server. Of 200 concurrent passes, each lasts as long
as all of them together; in turn, each is short, and the last one ends no later. A pass that waits for a silent master
uses neither: after TURN_SECONDS its turn ends, so that it does not delay the others.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

PASSES = 2
"""Number of turns: more than one, because a pass mostly waits for responses."""
TURN_SECONDS = 1.0


class Turns:
    """Admits passes in the order in which they ask."""

    def __init__(self, passes: int = PASSES, seconds: float = TURN_SECONDS) -> None:
        self._free = asyncio.Semaphore(passes)
        self._seconds = seconds

    @contextlib.asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait for a turn. It ends with the body of the `async with`, at the latest after the seconds of a turn."""
        await self._free.acquire()
        held = contextlib.ExitStack()
        held.callback(self._free.release)
        # Only the first `close` releases.
        timer = asyncio.get_running_loop().call_later(self._seconds, held.close)
        try:
            yield
        finally:
            timer.cancel()
            held.close()
