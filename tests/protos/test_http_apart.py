"""Probes answer while the loop that they speak for is busy, and say so once it is stuck."""

from __future__ import annotations

import asyncio
import threading
import urllib.request

from orca_protos.http import listen, probes, serving_apart
from orca_protos.loop_watch import LoopWatch


def test_a_probe_answers_while_the_loop_stands_still():
    answers: list[bytes] = []
    answered = threading.Event()

    async def main():
        async def livez():
            return 200, "ok"

        listener = listen("127.0.0.1", 0)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/livez"

        def ask():
            with urllib.request.urlopen(url, timeout=60) as answer:
                answers.append(answer.read())
            answered.set()

        async with serving_apart(probes({"/livez": livez}), listener):
            asker = threading.Thread(target=ask)
            asker.start()
            assert answered.wait(60), "the loop of this test takes no turn meanwhile"
            asker.join(60)
        assert listener.fileno() < 0

    asyncio.run(main())
    assert answers == [b"ok"]


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
