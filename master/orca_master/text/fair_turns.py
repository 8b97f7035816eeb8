"""`FairTurns`: a lock for which owners take turns: many waiting tasks of one owner delay another's by one turn.

`WorkInTurn`: work that begins when it is its owner's turn, and whose result several callers may await.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

Result = TypeVar("Result")


class FairTurns:
    """Used on one event loop. Tasks of an owner have their turns in the order of `acquire`."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()
        """By owner, in the order of their next turns."""
        self._holder: str | None = None
        """The owner whose turn it is."""

    async def acquire(self, owner: str) -> None:
        """Wait for the turn of a task of `owner`, and take it."""
        if self._holder is None:
            self._holder = owner
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(owner, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # the turn came at the same time
                self.release()
            raise

    def release(self) -> None:
        """End a turn: its owner goes behind the others that wait, and the first of them has the next turn."""
        if self._holder is not None and self._holder in self._waiting:
            self._waiting.move_to_end(self._holder)
        while self._waiting:
            self._holder, turns = next(iter(self._waiting.items()))
            turn = turns.popleft()
            if not turns:
                del self._waiting[self._holder]
            if not turn.cancelled():
                turn.set_result(None)
                return
        self._holder = None


class WorkInTurn(Generic[Result]):
    """A task that does `work` in a turn of `owner`; it ends without a turn if all its callers are cancelled before.

    Work that has begun goes on without callers.
    """

    def __init__(self, turns: FairTurns, owner: str, work: Callable[[], Awaitable[Result]]) -> None:
        self.num_callers = 0
        """Those that wait for the result."""
        self._has_begun = False
        self._task = asyncio.create_task(self._run(turns, owner, work))
        self.on_end(lambda: self._task.cancelled() or self._task.exception())  # its callers may be gone

    @property
    def is_abandoned(self) -> bool:
        """True if the callers are gone, and the work will not begin."""
        return self._task.cancelling() > 0

    def on_end(self, call: Callable[[], object]) -> None:
        """Call `call` when the work has ended."""
        self._task.add_done_callback(lambda _: call())

    async def result(self) -> Result:
        """Wait for the end of the work; return its result, or raise its exception."""
        self.num_callers += 1
        try:
            return await asyncio.shield(self._task)
        finally:
            self.num_callers -= 1
            if not self.num_callers and not self._has_begun:
                self._task.cancel()

    async def _run(self, turns: FairTurns, owner: str, work: Callable[[], Awaitable[Result]]) -> Result:
        await turns.acquire(owner)
        self._has_begun = True
        try:
            return await work()
        finally:
            turns.release()
