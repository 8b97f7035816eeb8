"""`FairTurns`: whose turn it is."""

from __future__ import annotations

import asyncio
import random

import pytest
from orca_master.text.fair_turns import FairTurns


def order_of(owners: str) -> str:
    """Return the owners in the order of their turns; all wait while another task has the first turn."""

    async def scene() -> str:
        turns, order = FairTurns(), list[str]()

        async def work(owner: str) -> None:
            await turns.acquire(owner)
            order.append(owner)
            await asyncio.sleep(0)
            turns.release()

        await turns.acquire("first")
        tasks = [asyncio.create_task(work(owner)) for owner in owners]
        await asyncio.sleep(0)
        assert turns.num_waiting == len(owners)
        assert all(turns.num_waiting_of(owner) == owners.count(owner) for owner in "abc")
        turns.release()
        await asyncio.gather(*tasks)
        assert turns.num_waiting == 0
        await asyncio.wait_for(turns.acquire("last"), 10)
        return "".join(order)

    return asyncio.run(scene())


@pytest.mark.parametrize(
    ("arrivals", "order"), [("aaaaaab", "abaaaaa"), ("aaabbc", "abcaba"), ("aaa", "aaa"), ("", ""), ("cab", "cab")]
)
def test_owners_take_turns_and_tasks_of_one_keep_their_order(arrivals, order):
    assert order_of(arrivals) == order


def test_a_later_owner_waits_for_one_turn_of_each_other():
    async def scene() -> None:
        turns, order = FairTurns(), list[str]()

        async def work(owner: str) -> None:
            await turns.acquire(owner)
            order.append(owner)
            if len(order) == 3:
                tasks.append(asyncio.create_task(work("late")))
            await asyncio.sleep(0)
            turns.release()

        tasks = [asyncio.create_task(work(owner)) for owner in "ab" * 20]
        while len(order) < 41:
            await asyncio.sleep(0)
        assert order.index("late") <= 5
        await asyncio.gather(*tasks)

    asyncio.run(asyncio.wait_for(scene(), 60))


@pytest.mark.parametrize("seed", range(20))
def test_cancelled_tasks_lose_no_turn(seed):
    """Also those that are cancelled when their turn has just come."""

    async def scene() -> None:
        turns, drawn, holders = FairTurns(), random.Random(seed), set[object]()

        async def work(owner: str) -> None:
            await turns.acquire(owner)
            me = object()
            holders.add(me)
            assert holders == {me}
            try:
                await asyncio.sleep(0)
            finally:
                holders.remove(me)
                turns.release()

        tasks = list[asyncio.Task[None]]()
        for _ in range(200):
            tasks.append(asyncio.create_task(work(drawn.choice("abc"))))
            if drawn.random() < 0.5:
                drawn.choice(tasks).cancel()
            if drawn.random() < 0.6:
                await asyncio.sleep(0)
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(result is None or isinstance(result, asyncio.CancelledError) for result in results)
        assert None in results
        assert turns.num_waiting == 0
        await turns.acquire("last")

    asyncio.run(asyncio.wait_for(scene(), 60))
