"""Whether a loop takes turns, asked from another thread."""

from __future__ import annotations

import asyncio
import threading

from orca_protos.loop_watch import LoopWatch


def test_a_loop_that_takes_no_turn_is_stuck():
    async def main():
        patient, strict = LoopWatch(), LoopWatch(seconds=0)

        def ask_twice(watch):
            return [watch.stuck(), watch.stuck()]

        for watch, expected in ((patient, [False, False]), (strict, [False, True])):
            found: list[bool] = []
            asker = threading.Thread(target=lambda watch=watch, found=found: found.extend(ask_twice(watch)))
            asker.start()
            asker.join()  # no turn of this loop
            assert found == expected
            await asyncio.sleep(0)
            assert not watch.stuck()
        return strict

    watch = asyncio.run(main())
    assert watch.stuck(), "its loop is closed"
