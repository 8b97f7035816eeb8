"""What nobody can do at a worker's port: run a command, use its epochs up, or take all descriptors."""

from __future__ import annotations

import asyncio
import selectors
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from orca_master.engine.worker_connection import WorkerConnection
from orca_protos import engine_pb2 as pb
from orca_protos.engine_pb2_grpc import WorkerStub, add_WorkerServicer_to_server
from orca_protos.tls import TlsFolder
from orca_protos.wire import HIGHEST_EPOCH, MAX_CONNECTIONS, SERVER_OPTIONS
from orca_worker.controller import Controller
from support import door_server
from support.certificates import sign, write

MODEL = Path(__file__).parents[2] / "examples" / "demo-model"


def at_the_port(visit: Callable[[Controller, Any, int], Coroutine[Any, Any, None]]) -> None:
    """Run `visit(controller, stub, port)` against a worker's server that asks for no certificate."""

    async def run() -> None:
        controller = Controller(("false",))
        server = grpc.aio.server(options=SERVER_OPTIONS)
        add_WorkerServicer_to_server(controller, server)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        try:
            async with asyncio.timeout(120), grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
                await visit(controller, WorkerStub(channel), port)
        finally:
            await controller.close()
            await server.stop(0)

    asyncio.run(run())


@pytest.mark.parametrize("name", ["LD_PRELOAD", "PYTHONWARNINGS", "BROWSER", "NCCL_NET_PLUGIN", "NCCL_DEBUG_FILE"])
def test_load_takes_no_variable_that_loads_code_or_writes_a_file(name):
    async def visit(controller: Controller, stub: Any, port: int) -> None:
        request = pb.LoadRequest(
            model_path=str(MODEL),
            pipeline_parallel_size=1,
            tensor_parallel_size=1,
            environment={"NCCL_DEBUG": "INFO", name: "x"},
        )
        with pytest.raises(grpc.aio.AioRpcError, match=f"'{name}' is refused") as error:
            await stub.Load(request).read()
        assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert not controller._ranks

    at_the_port(visit)


@pytest.mark.parametrize(
    ("count", "words"),
    [
        ({"pipeline_parallel_size": 0}, "pipeline_parallel_size 0: at least 1"),
        ({"tensor_parallel_size": 0}, "tensor_parallel_size 0: at least 1"),
        ({"workers_on_host": 0}, "workers_on_host 0: at least 1"),
        ({"partition": 2}, "partition 2 of 2"),
    ],
)
def test_load_takes_no_counts_that_cannot_be(count, words):
    async def visit(controller: Controller, stub: Any, port: int) -> None:
        counts = {"pipeline_parallel_size": 2, "tensor_parallel_size": 1, "workers_on_host": 1, **count}
        with pytest.raises(grpc.aio.AioRpcError, match=words) as error:
            await stub.Load(pb.LoadRequest(model_path=str(MODEL), device="cpu", **counts)).read()
        assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT

    at_the_port(visit)


@pytest.mark.parametrize("epoch", [HIGHEST_EPOCH + 1, 2**63, 2**64 - 1])
def test_an_epoch_beyond_the_last_one_is_refused(epoch):
    async def visit(controller: Controller, stub: Any, port: int) -> None:
        with pytest.raises(grpc.aio.AioRpcError, match=f"epoch {epoch} exceeds the maximum") as error:
            await stub.Prepare(pb.PrepareRequest(epoch=epoch))
        assert error.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert (await stub.Describe(pb.DescribeRequest())).highest_epoch == 0

    at_the_port(visit)


def test_connections_beyond_the_bound_are_closed_at_once():
    async def visit(controller: Controller, stub: Any, port: int) -> None:
        connection = WorkerConnection(f"127.0.0.1:{port}")
        await connection.describe(30)
        strangers = [socket.create_connection(("127.0.0.1", port)) for _ in range(MAX_CONNECTIONS + 50)]
        try:
            closed = await asyncio.gather(*(asyncio.to_thread(is_closed, stranger) for stranger in strangers))
            assert sum(closed) >= 50
            await connection.describe(30)  # whoever was there before is served on
        finally:
            await connection.close()
            for stranger in strangers:
                stranger.close()

    at_the_port(visit)


@pytest.mark.long
def test_places_of_connections_that_send_nothing_are_free_again_soon():
    """A new master gets in although strangers held every place: a handshake has 3 s, and the master tries longer."""

    async def visit(controller: Controller, stub: Any, port: int) -> None:
        strangers = [socket.create_connection(("127.0.0.1", port)) for _ in range(MAX_CONNECTIONS)]
        connection = WorkerConnection(f"127.0.0.1:{port}")
        try:
            await connection.describe(30)
        finally:
            await connection.close()
            for stranger in strangers:
                stranger.close()

    assert dict(SERVER_OPTIONS)["grpc.server_handshake_timeout_ms"] == 3_000
    at_the_port(visit)


def is_closed(connection: socket.socket) -> bool:
    """Whether the server closes a connection before it sends anything."""
    connection.settimeout(30)
    try:
        return connection.recv(1) == b""
    except ConnectionError:
        return True


@pytest.mark.long
def test_idle_connections_do_not_kill_a_worker_with_certificates(tmp_path):
    """Handshakes that end by the clock while others begin: gRPC must not replace the certificates meanwhile."""
    authority = sign()
    folder = write(tmp_path, sign("master.a", "worker.a", issuer=authority), authority)
    command = [sys.executable, door_server.__file__, str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            port = int(server.stdout.readline())
            reopen_idle_connections(port, 200, 5.0)
            assert server.poll() is None, f"the server ended: {server.returncode}"

            async def ask() -> None:
                connection = WorkerConnection(f"127.0.0.1:{port}", TlsFolder(folder, "master"))
                assert (await connection.describe(30)).boot_id
                await connection.close()

            asyncio.run(ask())
            assert server.poll() is None
        finally:
            server.kill()


def reopen_idle_connections(port: int, number: int, seconds: float) -> None:
    """Hold `number` connections that send nothing, and open another for each that the server closes."""
    deadline = time.monotonic() + seconds
    with selectors.DefaultSelector() as selector:
        while time.monotonic() < deadline:
            while len(selector.get_map()) < number:
                try:
                    connection = socket.create_connection(("127.0.0.1", port), timeout=5)
                except OSError:  # nobody listens any longer: the caller looks at the process
                    deadline = 0.0
                    break
                selector.register(connection, selectors.EVENT_READ)
            for key, _ in selector.select(0.1):
                selector.unregister(key.fileobj)
                key.fileobj.close()
        for key in list(selector.get_map().values()):
            key.fileobj.close()
