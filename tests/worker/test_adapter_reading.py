"""Reads of adapters' files on one thread: a storage that does not answer takes one thread, and refuses no adapter."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable

import pytest
from orca_protos import engine_pb2 as pb
from orca_worker import adapter_reading, runtime_adapters
from orca_worker.adapter_reading import AdapterReading
from orca_worker.errors import FaultError, ModelError
from orca_worker.partition_loader import PartitionLoader
from orca_worker.rank_starter import RankStarter
from support.no_threads import no_threads

NEW, KNOWN = pb.RuntimeAdapter(name="x"), pb.RuntimeAdapter(name="x", digest="d")


class Storage:
    """Files whose reads hang until `answers` is set."""

    def __init__(self) -> None:
        self.answers = threading.Event()
        self.num_reads = 0

    def read(self, *_: object) -> str:
        self.num_reads += 1
        assert self.answers.wait(60)
        return "d"


def play(scene: Callable[[Storage], Awaitable[None]]) -> None:
    """Run a scene; end its reads in any case."""
    storage = Storage()
    try:
        asyncio.run(scene(storage))  # type: ignore[arg-type]
    finally:
        storage.answers.set()


async def unused(*_: object) -> None:
    raise AssertionError("no rank is started")


def loader(monkeypatch: pytest.MonkeyPatch, storage: Storage) -> PartitionLoader:
    monkeypatch.setattr(runtime_adapters, "checked_digest", storage.read)
    made = PartitionLoader(RankStarter(print, print, unused), ["none"], False, unused)
    made.request = pb.LoadRequest(partition=1)
    return made


def test_a_read_that_hangs_refuses_a_new_adapter_but_none_that_others_have(monkeypatch):
    monkeypatch.setattr(adapter_reading, "ADAPTER_FILES_SECONDS", 0.01)

    async def scene(storage: Storage) -> None:
        made = loader(monkeypatch, storage)
        with pytest.raises(FaultError, match="could not be read within") as lost:
            await made.adapter_digest(KNOWN)
        assert (lost.value.fault.kind, lost.value.fault.partition) == (pb.FAULT_KIND_CAUSE, 1)
        assert lost.value.fault.outside  # no adapter is to blame
        with pytest.raises(ModelError, match="an earlier read of an adapter's files has not ended"):
            await made.adapter_digest(NEW)
        with pytest.raises(FaultError, match="could not be read within"):
            await made.adapter_digest(KNOWN)
        assert storage.num_reads == 1
        monkeypatch.setattr(adapter_reading, "ADAPTER_FILES_SECONDS", 60.0)
        waiting = asyncio.create_task(made.adapter_digest(KNOWN))
        storage.answers.set()
        assert await waiting == "d"
        assert await made.adapter_digest(NEW) == "d"

    play(scene)


def test_a_new_adapter_that_cannot_be_read_in_time_is_refused(monkeypatch):
    monkeypatch.setattr(adapter_reading, "ADAPTER_FILES_SECONDS", 0.01)

    async def scene(storage: Storage) -> None:
        with pytest.raises(ModelError, match=r"^the files of adapter 'x' could not be read within"):
            await loader(monkeypatch, storage).adapter_digest(NEW)

    play(scene)


def test_a_read_whose_caller_has_left_delays_the_next_and_refuses_nothing():
    async def scene(storage: Storage) -> None:
        reading = AdapterReading()
        left = asyncio.create_task(reading.run(storage.read))
        while not storage.num_reads:
            await asyncio.sleep(0.001)
        left.cancel()
        await asyncio.gather(left, return_exceptions=True)
        reading.check_free()
        following = asyncio.create_task(reading.run(storage.read))
        storage.answers.set()
        assert await following == "d"
        assert storage.num_reads == 2

    play(scene)


HANGS = """
import asyncio, threading
from orca_worker import adapter_reading

async def main():
    try:
        await adapter_reading.AdapterReading().run(lambda: str(threading.Event().wait()))
    except TimeoutError:
        print("late", flush=True)

adapter_reading.ADAPTER_FILES_SECONDS = 0.01
asyncio.run(main())
"""


def test_a_process_ends_while_a_read_hangs():
    done = subprocess.run([sys.executable, "-c", HANGS], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "late\n"


def test_a_read_needs_no_new_thread():
    """At a limit of threads the first read failed, and all later ones had no thread and waited for their timeout."""

    async def scene() -> None:
        reading = AdapterReading()
        with no_threads():
            assert await asyncio.wait_for(reading.run(lambda: "d"), 60) == "d"

    asyncio.run(scene())
