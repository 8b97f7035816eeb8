"""`Places`: taken in the order of asking, given back, and free after a cancellation."""

from __future__ import annotations

import asyncio
import contextlib

from orca_master.batches.places import Places


def test_places_are_taken_in_the_order_of_asking():
    """One that asks for three is not overtaken by one that asks for one, and leaves nothing if it is cancelled."""

    async def scene() -> None:
        places, order = Places(3), list[str]()

        async def take(name: str, count: int) -> None:
            await places.take(count)
            order.append(name)

        await take("first", 2)
        waiting = [asyncio.create_task(take(name, count)) for name, count in (("all", 3), ("one", 1))]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert order == ["first"]
        waiting[0].cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await waiting[0]
        await waiting[1]
        places.give(2)
        await take("two", 2)
        assert order == ["first", "one", "two"]
        assert places.num_taken == 3

    asyncio.run(asyncio.wait_for(scene(), 10))
