"""`DiskThreads`: results, errors, and the end of a function whose caller was cancelled."""

from __future__ import annotations

import asyncio
import threading

import pytest
from orca_master.batches.disk_threads import DiskThreads


def test_results_and_errors_return():
    async def scene() -> None:
        threads = DiskThreads()
        assert await threads.run(max, 1, 2) == 2
        with pytest.raises(ZeroDivisionError):
            await threads.run(divmod, 1, 0)
        threads.close()

    asyncio.run(scene())


def test_a_cancelled_caller_waits_for_the_function():
    async def scene() -> None:
        threads, begun, gate, done = DiskThreads(), threading.Event(), threading.Event(), list[str]()

        def write() -> None:
            begun.set()
            gate.wait(30)
            done.append("written")

        task = asyncio.create_task(threads.run(write))
        while not begun.is_set():
            await asyncio.sleep(0.001)
        for _ in range(2):  # the end of the batch, and that of the server
            task.cancel()
            await asyncio.sleep(0.01)
            assert not task.done()
        gate.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert done == ["written"]
        threads.close()

    asyncio.run(asyncio.wait_for(scene(), 60))
