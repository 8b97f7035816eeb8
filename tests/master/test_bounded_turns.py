"""`BoundedTurns`: tasks that wait are bounded in number, in bytes and in time."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from orca_master.bodies import bounded_turns
from orca_master.bodies.bounded_turns import ANYONE, MAX_BYTES, MIN_WAITING, BoundedTurns, Caller
from orca_master.engine.engine_client import EngineStatus
from orca_master.errors import QueueFullError
from support.scripted_engine import Scripted, ScriptedEngine, make_model


def refusal(waiting: list[int], num_bytes: int, caller: Caller) -> str:
    """Return the refusal of a task of `caller` while others with these bytes wait, "" if it gets its turn."""

    async def scene() -> str:
        turns = BoundedTurns("tasks")
        await turns.acquire(ANYONE, 0)
        tasks = [asyncio.create_task(turns.acquire(ANYONE, size)) for size in waiting]
        await asyncio.sleep(0)
        last = asyncio.create_task(turns.acquire(caller, num_bytes))
        await asyncio.sleep(0)
        for _ in range(len(tasks) + 1):
            turns.release(ANYONE)
            await asyncio.sleep(0)
        await asyncio.gather(*tasks)
        assert turns.num_waiting == turns._num_bytes == 0
        try:
            await last
        except QueueFullError as error:
            return str(error)
        return ""

    return asyncio.run(asyncio.wait_for(scene(), 60))


@pytest.mark.parametrize(
    ("waiting", "num_bytes", "limit", "expected"),
    [
        ([1] * 9, 1, 10, ""),
        ([1] * 10, 1, 10, "10 tasks are waiting, the limit is 10: retry"),
        ([MAX_BYTES // 2], MAX_BYTES // 2, 10, ""),
        ([MAX_BYTES // 2], MAX_BYTES // 2 + 1, 10, f"{MAX_BYTES // 2} bytes of tasks are waiting, the limit is"),
        ([], 2 * MAX_BYTES, 10, ""),
        ([2 * MAX_BYTES], 1, 10, "bytes of tasks are waiting"),
    ],
)
def test_the_number_and_the_bytes_of_those_that_wait_are_bounded(waiting, num_bytes, limit, expected):
    found = refusal(waiting, num_bytes, Caller("a", limit))
    assert expected in found
    assert bool(expected) == bool(found)


def test_the_wait_is_bounded_and_loses_no_turn(monkeypatch):
    monkeypatch.setattr(bounded_turns, "TURN_SECONDS", 0.01)

    async def scene() -> None:
        turns = BoundedTurns("tasks")
        await turns.acquire(ANYONE, 0)
        with pytest.raises(QueueFullError, match=r"waited more than 0\.01 s for other tasks: retry"):
            await turns.acquire(ANYONE, 1)
        turns.release(ANYONE)
        await turns.acquire(ANYONE, 1)
        assert turns.num_waiting == 0

    asyncio.run(asyncio.wait_for(scene(), 60))


def test_callers_take_turns():
    async def scene() -> list[str]:
        turns, order = BoundedTurns("tasks", 2), list[str]()

        async def work(caller: Caller) -> None:
            await turns.acquire(caller, 1)
            order.append(caller.owner)
            await asyncio.sleep(0)
            turns.release(caller)

        await asyncio.gather(*(work(Caller(owner)) for owner in "aaaaaaaab"))
        return order

    order = asyncio.run(asyncio.wait_for(scene(), 60))
    assert order.index("b") <= 3


@pytest.mark.parametrize(("depth", "limit"), [(4096, 4096), (2, MIN_WAITING)])
def test_the_limit_is_that_of_the_queue_which_may_be_short(tmp_path, depth, limit):
    class Queue(ScriptedEngine):
        @property
        def status(self) -> EngineStatus:
            return replace(super().status, max_queued_requests=depth)

    endpoint = Scripted(make_model(tmp_path, ""), "a", engine=Queue).endpoint
    assert endpoint.caller("key") == Caller("key", limit)
