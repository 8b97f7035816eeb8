"""A connection that is closed during a call: the caller gets a typed error; only its own cancellation stays one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from orca_master.engine.faults import Evidence, WorkerLostError
from orca_master.engine.worker_connection import WorkerConnection
from orca_protos import engine_pb2 as pb
from orca_protos.engine_pb2_grpc import WorkerServicer, add_WorkerServicer_to_server

CHANGE = pb.ChangeAdaptersRequest(epoch=1)


class SilentWorker(WorkerServicer):
    """Answers no call."""

    def __init__(self) -> None:
        self.called = asyncio.Event()

    async def ChangeAdapters(self, request: pb.ChangeAdaptersRequest, context: Any) -> pb.AdaptersChanged:
        self.called.set()
        await asyncio.Event().wait()
        raise AssertionError

    async def Load(self, request: pb.LoadRequest, context: Any) -> None:
        self.called.set()
        await asyncio.Event().wait()


def play(folder: Path, scene: Callable[[WorkerConnection, SilentWorker], Awaitable[None]]) -> None:
    async def run() -> None:
        server, worker = grpc.aio.server(), SilentWorker()
        add_WorkerServicer_to_server(worker, server)  # type: ignore[no-untyped-call]
        server.add_insecure_port(f"unix:{folder}/socket")
        await server.start()
        connection = WorkerConnection(f"unix:{folder}/socket")
        try:
            async with asyncio.timeout(60):
                await scene(connection, worker)
        finally:
            await connection.close()
            await server.stop(None)

    asyncio.run(run())


@pytest.mark.parametrize("call", ["change_adapters", "load"])
def test_a_call_whose_connection_is_closed_has_lost_its_worker(call, tmp_path):
    async def scene(connection: WorkerConnection, worker: SilentWorker) -> None:
        arguments = {"change_adapters": (CHANGE,), "load": (pb.LoadRequest(), lambda *_: None)}[call]
        task = asyncio.ensure_future(getattr(connection, call)(*arguments))
        await worker.called.wait()
        await connection.close()
        with pytest.raises(WorkerLostError, match="the connection was closed") as lost:
            await task
        assert (lost.value.worker, lost.value.evidence) == (connection.address, Evidence.GONE)

    play(tmp_path, scene)


def test_a_call_on_a_closed_connection_has_lost_its_worker(tmp_path):
    async def scene(connection: WorkerConnection, _: SilentWorker) -> None:
        await connection.close()
        with pytest.raises(WorkerLostError, match="the connection was closed"):
            await connection.change_adapters(CHANGE)

    play(tmp_path, scene)


def test_a_caller_that_is_cancelled_stays_cancelled(tmp_path):
    async def scene(connection: WorkerConnection, worker: SilentWorker) -> None:
        task = asyncio.ensure_future(connection.change_adapters(CHANGE))
        await worker.called.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    play(tmp_path, scene)


class Loading:
    """The stream of a Load that reports progress when a test says so, and never ends."""

    def __init__(self) -> None:
        self._progress = asyncio.Queue[pb.LoadProgress]()
        self.is_read = asyncio.Event()

    def report(self) -> None:
        self._progress.put_nowait(pb.LoadProgress(loaded_bytes=1, total_bytes=2))

    async def read(self) -> pb.LoadProgress:
        self.is_read.set()
        return await self._progress.get()


def test_a_load_that_is_cancelled_when_its_progress_arrives_ends(tmp_path):
    async def scene(connection: WorkerConnection, _: SilentWorker) -> None:
        stream = Loading()
        connection._stub.Load = lambda request: stream
        task = asyncio.ensure_future(connection.load(pb.LoadRequest(), lambda *_: None))
        await stream.is_read.wait()
        stream.report()
        task.cancel()
        await asyncio.wait({task})
        assert task.cancelled()

    play(tmp_path, scene)
