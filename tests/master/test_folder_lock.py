"""The lock of a folder, and the wait for an earlier master that holds it."""

from __future__ import annotations

import asyncio
import gc
import os
import threading

import pytest
from orca_master.errors import ConfigurationError
from orca_master.journal.folder_lock import FolderInUseError, lock_folder, when_free


def test_a_master_waits_until_the_earlier_one_has_left_the_folder(tmp_path, caplog):
    """The event loop runs meanwhile: it answers probes and handles signals."""
    caplog.set_level("INFO")
    earlier = lock_folder(tmp_path)

    async def run() -> int:
        waiting = asyncio.create_task(when_free(lambda _: lock_folder(tmp_path), 1000))
        while not caplog.records:
            await asyncio.sleep(0.01)
        assert not waiting.done()
        os.close(earlier)
        return await asyncio.wait_for(waiting, 60)

    descriptor = asyncio.run(run())
    with pytest.raises(FolderInUseError):
        lock_folder(tmp_path)
    os.close(descriptor)
    assert [record.getMessage() for record in caplog.records] == [
        f"--journal {tmp_path}: another master uses this folder, which may be draining: waiting for its end, at most "
        "1000 s"
    ]


def test_the_wait_is_bounded(tmp_path):
    earlier = lock_folder(tmp_path, "--batch-directory")
    for seconds in (0.0, 0.3):
        with pytest.raises(ConfigurationError, match=r"--batch-directory .*: another master uses this folder$"):
            asyncio.run(when_free(lambda _: lock_folder(tmp_path, "--batch-directory"), seconds))
    os.close(earlier)


def test_the_end_of_the_wait_leaves_nothing_locked(tmp_path):
    earlier = lock_folder(tmp_path)

    async def run() -> None:
        waiting = asyncio.create_task(when_free(lambda _: lock_folder(tmp_path), 1000))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)

    asyncio.run(run())
    os.close(earlier)
    os.close(lock_folder(tmp_path))


def test_another_error_ends_the_start_at_once(tmp_path):
    calls = []

    def refuse(_: object) -> int:
        calls.append(1)
        raise ConfigurationError("no folder")

    with pytest.raises(ConfigurationError, match="no folder"):
        asyncio.run(when_free(refuse, 1000))
    assert len(calls) == 1


@pytest.mark.parametrize("cancelled", [False, True])
def test_the_event_loop_runs_while_the_folder_is_opened(tmp_path, cancelled):
    """A large journal takes tens of seconds, and a master without a sign of life for ten is killed."""
    began, goes_on = threading.Event(), threading.Event()

    def open_folder(_: object) -> str:
        began.set()
        assert goes_on.wait(60), "only the event loop sets it"
        return "opened"

    async def run() -> None:
        opening = asyncio.create_task(when_free(open_folder, 0))
        while not began.is_set():
            await asyncio.sleep(0.01)
        if cancelled:
            opening.cancel()
            await asyncio.sleep(0.01)
        assert not opening.done()
        goes_on.set()
        if cancelled:
            with pytest.raises(asyncio.CancelledError):
                await opening
        else:
            assert await opening == "opened"

    asyncio.run(run())


def test_an_error_after_the_wait_was_cancelled_is_not_logged(caplog):
    began, goes_on = threading.Event(), threading.Event()

    def refuse(_: object) -> int:
        began.set()
        assert goes_on.wait(60)
        raise ConfigurationError("no folder")

    async def run() -> None:
        opening = asyncio.create_task(when_free(refuse, 0))
        while not began.is_set():
            await asyncio.sleep(0.01)
        opening.cancel()
        await asyncio.sleep(0.01)
        goes_on.set()
        with pytest.raises(asyncio.CancelledError):
            await opening

    asyncio.run(run())
    gc.collect()
    assert not caplog.records
