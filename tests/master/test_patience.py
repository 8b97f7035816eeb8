"""How long requests wait while no pipeline serves: progress counts, the clock alone does not."""

from __future__ import annotations

import asyncio

from orca_master.engine.patience import Patience


def test_progress_begins_the_wait_anew_until_it_is_over(monkeypatch):
    async def run() -> None:
        now, over = 1000.0, []

        async def advance(seconds: float) -> int:
            nonlocal now
            now += seconds
            for _ in range(3):
                await asyncio.sleep(0)
            return len(over)

        monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now)
        patience = Patience(60.0, lambda: over.append(now))
        patience.note_progress()
        assert await advance(100) == 0, "no wait was begun"
        patience.begin()
        for _ in range(5):
            assert await advance(59) == 0
            patience.note_progress()
        assert await advance(61) == 1
        patience.note_progress()
        assert await advance(100) == 1, "the requests have failed: there is nothing to wait for"
        patience.begin()
        patience.end()
        assert await advance(100) == 1
        patience.begin()
        assert await advance(61) == 2

    asyncio.run(run())
