"""Probes answer while the loop that they speak for is busy, and say so once it is stuck."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import urllib.request

from orca_protos.http import probes, serving_apart
from orca_protos.listening import listen
from support.no_threads import no_threads


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


def test_the_end_needs_no_new_thread():
    """At a limit of threads, a server that ends in order would end with a traceback."""

    async def main():
        listener = listen("127.0.0.1", 0)
        async with contextlib.AsyncExitStack() as stack:
            await stack.enter_async_context(serving_apart(probes({}), listener))
            limit.enter_context(no_threads())
        return listener.fileno()

    with contextlib.ExitStack() as limit:
        assert asyncio.run(main()) < 0
