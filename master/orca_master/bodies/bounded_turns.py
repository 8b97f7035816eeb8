"""`BoundedTurns`: turns of API keys, with bounds on the tasks that wait: their number, bytes and seconds."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass

from orca_master.bodies.fair_turns import FairTurns
from orca_master.errors import QueueFullError

MAX_BYTES = 256 << 20
"""Maximum memory of all tasks that wait; one that waits alone may have more."""
MIN_WAITING = 256
"""Number of tasks that may wait at least, also before a queue that is shorter."""
TURN_SECONDS = 60.0
"""Maximum wait of a task for its turn."""


@dataclass(frozen=True, slots=True)
class Caller:
    """A client whose request waits: the digest of its API key, and how many requests may wait."""

    owner: str = ""
    limit: int = sys.maxsize


ANYONE = Caller()


class BoundedTurns:
    """FairTurns of tasks that are called `name`, a plural, in errors. Used on one event loop."""

    def __init__(self, name: str, num_turns: int = 1) -> None:
        self._name = name
        self._turns = FairTurns(num_turns)
        self.num_waiting = 0
        self._num_bytes = 0

    async def acquire(self, caller: Caller, num_bytes: int) -> None:
        """Wait for a turn of the caller, whose task takes `num_bytes` of memory; raise QueueFullError at a bound."""
        if self.num_waiting >= caller.limit:
            raise QueueFullError(f"{self.num_waiting} {self._name} are waiting, the limit is {caller.limit}: retry")
        if self.num_waiting and self._num_bytes + num_bytes > MAX_BYTES:
            raise QueueFullError(
                f"{self._num_bytes} bytes of {self._name} are waiting, the limit is {MAX_BYTES}: retry"
            )
        self.num_waiting += 1
        self._num_bytes += num_bytes
        try:
            async with asyncio.timeout(TURN_SECONDS):
                await self._turns.acquire(caller.owner)
        except TimeoutError as error:
            raise QueueFullError(f"waited more than {TURN_SECONDS:g} s for other {self._name}: retry") from error
        finally:
            self.num_waiting -= 1
            self._num_bytes -= num_bytes

    def release(self, caller: Caller) -> None:
        """End a turn of the caller."""
        self._turns.release(caller.owner)
