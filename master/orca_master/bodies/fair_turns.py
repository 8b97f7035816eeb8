"""`FairTurns`: a semaphore for which owners take turns: many waiting tasks of one owner delay another's by one turn.

`WorkInTurn`: work that begins when it is its owner's turn, and whose result several callers may await.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

Result = TypeVar("Result")


class FairTurns:
    """`num_turns` turns at a time, on one event loop. Tasks of an owner have theirs in the order of `acquire`."""

    def __init__(self, num_turns: int = 1) -> None:
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()
        """By owner, in the order of their next turns."""
        self.num_free = num_turns

    async def acquire(self, owner: str) -> None:
        """Wait for the turn of a task of `owner`, and take it."""
        if self.num_free:
            self.num_free -= 1
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(owner, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # the turn came at the same time
                self.release(owner)
            raise

    def release(self, owner: str) -> None:
        """End a turn of `owner`, who goes behind the others that wait; the first of them has the next turn."""
        if owner in self._waiting:
            self._waiting.move_to_end(owner)
        while self._waiting:
            first, turns = next(iter(self._waiting.items()))
            turn = turns.popleft()
            if not turns:
                del self._waiting[first]
            elif not turn.cancelled():
                self._waiting.move_to_end(first)
            if not turn.cancelled():
                turn.set_result(None)
                return
        self.num_free += 1


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
            turns.release(owner)
