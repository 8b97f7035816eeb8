"""Turns: the order of the passes, how many run at once, and turns that end before their passes."""

from __future__ import annotations

import asyncio

import pytest
from orca_operator.turns import Turns

HOUR = 3600.0


class Passes:
    """Passes that wait until the test ends them."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self.begun: list[int] = []
        self.ends: dict[int, asyncio.Event] = {}

    def start(self, number: int) -> asyncio.Task[None]:
        self.ends[number] = asyncio.Event()
        return asyncio.create_task(self._run(number))

    async def _run(self, number: int) -> None:
        async with self._turns.turn():
            self.begun.append(number)
            await self.ends[number].wait()


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def test_passes_have_their_turns_in_the_order_in_which_they_ask():
    async def scenario() -> None:
        passes = Passes(Turns(2, HOUR))
        tasks = [passes.start(number) for number in range(5)]
        await settle()
        assert passes.begun == [0, 1]
        passes.ends[1].set()
        await settle()
        assert passes.begun == [0, 1, 2]
        for end in passes.ends.values():
            end.set()
        await asyncio.wait_for(asyncio.gather(*tasks), 60)
        assert passes.begun == [0, 1, 2, 3, 4]

    asyncio.run(scenario())


def test_the_turn_of_a_pass_that_lasts_ends_before_the_pass_and_only_once():
    async def scenario() -> None:
        passes = Passes(Turns(1, 0.01))
        first, second = passes.start(0), passes.start(1)
        while len(passes.begun) < 2:
            await asyncio.sleep(0.001)
        assert not first.done(), "the first pass still runs"
        for end in passes.ends.values():
            end.set()
        await asyncio.wait_for(asyncio.gather(first, second), 60)

        passes = Passes(turns := Turns(1, 0.01))
        first = passes.start(0)
        await asyncio.sleep(0.05)
        passes.ends[0].set()
        await first
        turns._seconds = HOUR
        later = [passes.start(number) for number in (1, 2)]
        await settle()
        assert passes.begun == [0, 1], "the end of the first pass released no second turn"
        for end in passes.ends.values():
            end.set()
        await asyncio.wait_for(asyncio.gather(*later), 60)

    asyncio.run(scenario())


@pytest.mark.parametrize("ending", ["cancelled while it waits", "cancelled while it runs", "raises"])
def test_a_pass_that_does_not_come_to_its_end_gives_its_turn_back(ending: str):
    async def scenario() -> None:
        passes = Passes(turns := Turns(1, HOUR))
        if ending == "raises":
            with pytest.raises(ValueError, match="pass"):
                async with turns.turn():
                    raise ValueError("pass")
        else:
            tasks = [passes.start(number) for number in (0, 1)]
            await settle()
            tasks[1 if ending == "cancelled while it waits" else 0].cancel()
            for end in passes.ends.values():
                end.set()
            await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 60)
        last = passes.start(2)
        passes.ends[2].set()
        await asyncio.wait_for(last, 60)

    asyncio.run(scenario())
