"""`LoopThread`: results for other threads, and an end that leaves none of them waiting."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any

import pytest
from orca_master.loop_thread import LoopThread


async def answer() -> str:
    return "an answer"


class Watched:
    """A lock for which nobody waits for ever."""

    def __init__(self, lock: Any) -> None:
        self._lock = lock

    def __enter__(self) -> None:
        assert self._lock.acquire(timeout=30), "a thread waits for itself"

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def test_nobody_waits_for_a_loop_that_has_ended():
    loop = LoopThread("test", "it is closed")
    begun, errors = threading.Event(), []

    async def wait() -> None:
        begun.set()
        await asyncio.Event().wait()

    def other_thread() -> None:
        try:
            loop.run(wait())
        except RuntimeError as error:
            errors.append(str(error))

    assert loop.run(answer()) == "an answer"
    thread = threading.Thread(target=other_thread, daemon=True)
    thread.start()
    assert begun.wait(30)
    loop.refuse()
    with pytest.raises(RuntimeError, match=r"^it is closed$"):
        loop.run(answer())
    assert loop.submit(answer()).result(30) == "an answer", "work of the end itself"
    loop.close()
    thread.join(30)
    assert errors == ["it is closed"]
    with pytest.raises(RuntimeError, match=r"^it is closed$"):
        loop.run(answer())


def test_a_forked_process_is_refused_and_does_not_wait():
    """It has a copy of the loop, whose thread has stayed behind. The lock may have been held, too."""
    loop = LoopThread("test", "it is closed")
    reader, writer = os.pipe()
    with loop._submitting:
        pid = os.fork()
        if not pid:
            try:
                loop.run(answer())
            except RuntimeError as error:
                os.write(writer, str(error).encode())
            finally:
                os._exit(0)
    os.close(writer)
    try:
        assert select.select([reader], [], [], 30)[0], "the forked process waits"
        assert os.read(reader, 200).decode() == (
            f"process {os.getpid()} created it, and has forked this one: create another one here"
        )
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(reader)
    assert loop.run(answer()) == "an answer"
    loop.refuse()
    loop.close()


def test_the_error_of_the_work_is_raised():
    loop = LoopThread("test", "it is closed")

    async def fail() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError, match="x"):
        loop.run(fail())
    loop.refuse()
    loop.close()


def test_a_signal_handler_closes_it_while_work_is_submitted(monkeypatch):
    """A handler runs on the thread that it interrupts, and may find its lock taken."""
    loop, submit = LoopThread("test", "it is closed"), LoopThread.submit
    monkeypatch.setattr(loop, "_submitting", Watched(loop._submitting))

    def close(*_: object) -> None:
        loop.refuse()
        loop.close()

    def interrupted(self: LoopThread, work: Coroutine[Any, Any, str]) -> Future[str]:
        signal.raise_signal(signal.SIGUSR1)
        return submit(self, work)

    monkeypatch.setattr(LoopThread, "submit", interrupted)
    handler = signal.signal(signal.SIGUSR1, close)
    try:
        with pytest.raises(RuntimeError, match=r"^it is closed$"):
            loop.run(answer())
    finally:
        signal.signal(signal.SIGUSR1, handler)
