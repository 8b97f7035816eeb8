"""`FairTurns`: whose turn it is. `WorkInTurn`: who awaits it."""

from __future__ import annotations

import asyncio
import gc
import random

import pytest
from orca_master.bodies.fair_turns import FairTurns, WorkInTurn


def order_of(owners: str) -> str:
    """Return the owners in the order of their turns; all wait while another task has the first turn."""

    async def scene() -> str:
        turns, order = FairTurns(), list[str]()

        async def work(owner: str) -> None:
            await turns.acquire(owner)
            order.append(owner)
            await asyncio.sleep(0)
            turns.release(owner)

        await turns.acquire("first")
        tasks = [asyncio.create_task(work(owner)) for owner in owners]
        await asyncio.sleep(0)
        turns.release("first")
        await asyncio.gather(*tasks)
        assert not turns._waiting
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
            turns.release(owner)

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
                turns.release(owner)

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
        assert not turns._waiting
        await turns.acquire("last")

    asyncio.run(asyncio.wait_for(scene(), 60))


def test_callers_of_the_same_work_share_its_turn_and_its_result():
    async def scene() -> None:
        turns, results = FairTurns(), list[str]()
        await turns.acquire("first")

        async def work() -> str:
            results.append("done")
            return "result"

        shared = WorkInTurn(turns, "a", work)
        callers = [asyncio.create_task(shared.result()) for _ in range(5)]
        await asyncio.sleep(0)
        callers[0].cancel()
        turns.release("first")
        assert await asyncio.gather(*callers[1:]) == ["result"] * 4
        assert results == ["done"]
        assert not shared.is_abandoned
        await asyncio.wait_for(turns.acquire("last"), 10)

    asyncio.run(scene())


def test_work_whose_callers_are_gone_before_its_turn_is_not_done():
    async def scene() -> None:
        turns, ended = FairTurns(), list[bool]()
        await turns.acquire("first")
        abandoned = WorkInTurn(turns, "a", forbidden)
        abandoned.on_end(lambda: ended.append(True))
        callers = [asyncio.create_task(abandoned.result()) for _ in range(2)]
        await asyncio.sleep(0)
        for caller in callers:
            caller.cancel()
        await asyncio.gather(*callers, return_exceptions=True)
        assert abandoned.is_abandoned
        turns.release("first")
        await asyncio.wait_for(turns.acquire("last"), 10)
        assert ended == [True]

    async def forbidden() -> None:
        raise AssertionError("the work has begun")

    asyncio.run(scene())


def test_work_that_has_begun_goes_on_without_callers_and_its_error_is_not_logged(caplog):
    async def scene() -> None:
        turns, goes_on = FairTurns(), asyncio.Event()

        async def work() -> None:
            await goes_on.wait()
            raise ValueError("nobody hears of it")

        running = WorkInTurn(turns, "a", work)
        caller = asyncio.create_task(running.result())
        while turns.num_free:
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        caller.cancel()
        await asyncio.gather(caller, return_exceptions=True)
        assert not running.is_abandoned
        goes_on.set()
        await asyncio.wait_for(turns.acquire("last"), 10)
        del running

    asyncio.run(scene())
    gc.collect()
    assert not caplog.records
