"""`FairTurns`: a lock for which owners take turns: many waiting tasks of one owner delay another's by one turn."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque


class FairTurns:
    """Used on one event loop. Tasks of an owner have their turns in the order of `acquire`."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()
        """By owner; the owner whose last turn ended longest ago is first."""
        self._holder: str | None = None
        """The owner whose turn it is."""

    @property
    def num_waiting(self) -> int:
        """Number of tasks that wait for their turn."""
        return sum(map(len, self._waiting.values()))

    def num_waiting_of(self, owner: str) -> int:
        """Return the number of an owner's tasks that wait."""
        return len(self._waiting.get(owner, ()))

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
            if turn.cancelled():
                self._remove(owner, turn)
            else:  # the turn came at the same time
                self.release()
            raise

    def release(self) -> None:
        """End a turn and give the next one to a task of the owner whose last turn ended longest ago."""
        if self._holder is not None and self._holder in self._waiting:
            self._waiting.move_to_end(self._holder)
        while self._waiting:
            self._holder, turns = next(iter(self._waiting.items()))
            turn = turns.popleft()
            if not turns:
                del self._waiting[self._holder]
            if not turn.done():  # a cancelled one is removed when its task goes on
                turn.set_result(None)
                return
        self._holder = None

    def _remove(self, owner: str, turn: asyncio.Future[None]) -> None:
        turns = self._waiting.get(owner)
        if turns is not None and turn in turns:
            turns.remove(turn)
            if not turns:
                del self._waiting[owner]
