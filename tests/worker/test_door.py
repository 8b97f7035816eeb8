"""Who may call what on a worker with certificates: every method of the service, by callers of every kind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from orca_master.engine.faults import WorkerLostError
from orca_master.engine.worker_connection import WorkerConnection
from orca_protos import deadlines
from orca_protos import engine_pb2 as pb
from orca_protos.engine_pb2_grpc import WorkerStub, add_WorkerServicer_to_server
from orca_protos.tls import TlsFolder
from orca_protos.wire import SERVER_OPTIONS
from orca_worker.controller import Controller
from orca_worker.door import ALSO_FOR_WORKERS, Door
from support.certificates import Signed, sign, write

CA = sign()
OTHER_CA = sign()
METHODS = {method.name: method for method in pb.DESCRIPTOR.services_by_name["Worker"].methods}
MASTER = sign("master.a", issuer=CA)
WORKER = sign("worker.a", issuer=CA)
ALL_ROLES = sign("operator.a", "master.a", "worker.a", issuer=CA)
STRANGERS = {
    "no certificate": None,
    "another CA": sign("master.a", issuer=OTHER_CA),
    "another deployment": sign("master.b", "worker.b", issuer=CA),
    "the operator": sign("operator.a", issuer=CA),
    "a name that begins alike": sign("master.a.b", "master.ab", "xmaster.a", issuer=CA),
    "no role": sign("a", issuer=CA),
}
UNREACHED = grpc.StatusCode.UNAVAILABLE
DENIED = grpc.StatusCode.PERMISSION_DENIED


def at_the_door(
    folder: Path,
    visit: Callable[[Callable[[Signed | None], Any], Controller, str], Any],
    worker: Signed = WORKER,
    authority: Signed = CA,
) -> None:
    """Run `visit(channel_of, controller, address)` against a worker's server with certificates of deployment a."""

    async def run() -> None:
        tls = TlsFolder(write(folder / "worker", worker, authority), "worker")
        controller = Controller(("false",), tls=tls)
        server = grpc.aio.server(options=SERVER_OPTIONS, interceptors=[Door(tls)])
        add_WorkerServicer_to_server(controller, server)
        port = server.add_secure_port("127.0.0.1:0", tls.server_credentials())
        await server.start()
        channels: list[Any] = []

        def channel_of(caller: Signed | None) -> Any:
            own = (caller.key_pem, caller.pem) if caller else (None, None)
            credentials = grpc.ssl_channel_credentials(authority.pem, *own)
            options = [("grpc.ssl_target_name_override", "worker.a")]
            channels.append(grpc.aio.secure_channel(f"127.0.0.1:{port}", credentials, options=options))
            return channels[-1]

        try:
            async with asyncio.timeout(120):
                await visit(channel_of, controller, f"127.0.0.1:{port}")
        finally:
            for channel in channels:
                await channel.close()
            await controller.close()
            await server.stop(0)

    asyncio.run(run())


async def status_of(channel: Any, name: str) -> tuple[grpc.StatusCode, str]:
    """Call a method with an empty request; return its status, OK if the call is answered."""
    method, call = METHODS[name], getattr(WorkerStub(channel), name)
    request = pb.DESCRIPTOR.message_types_by_name[method.input_type.name]._concrete_class()
    try:
        if method.client_streaming:
            stream = call()
            await stream.write(request)
            await stream.read()
        elif method.server_streaming:
            await call(request).read()
        else:
            await call(request)
    except grpc.aio.AioRpcError as error:
        return error.code(), error.details() or ""
    except asyncio.InvalidStateError:  # the stream ended before the request was written
        return await stream.code(), await stream.details()
    return grpc.StatusCode.OK, ""


@pytest.mark.parametrize("who", STRANGERS)
def test_a_stranger_is_refused_at_every_method(tmp_path, who):
    async def visit(channel_of: Callable[[Signed | None], Any], controller: Controller, _: str) -> None:
        channel = channel_of(STRANGERS[who])
        for name in METHODS:
            code, details = await status_of(channel, name)
            assert code in (UNREACHED, DENIED), (name, code, details)
            if code is DENIED:
                assert f"{name} is for master.a" in details
        assert not controller.stopped.is_set()
        assert controller.epoch.highest == 0

    at_the_door(tmp_path, visit)


def test_another_partition_may_only_run_iterations_and_meet(tmp_path):
    async def visit(channel_of: Callable[[Signed | None], Any], controller: Controller, _: str) -> None:
        channel = channel_of(WORKER)
        for name in METHODS:
            code, details = await status_of(channel, name)
            assert (code is DENIED) == (name not in ALSO_FOR_WORKERS), (name, code, details)
            assert code is not UNREACHED
        assert not controller.stopped.is_set()

    at_the_door(tmp_path, visit)


@pytest.mark.parametrize("caller", [MASTER, ALL_ROLES], ids=["master", "all roles"])
def test_the_master_may_call_everything(tmp_path, monkeypatch, caller):
    monkeypatch.setattr(deadlines, "NEIGHBOUR_FORMED_SECONDS", 0.1)

    async def visit(channel_of: Callable[[Signed | None], Any], controller: Controller, _: str) -> None:
        channel = channel_of(caller)
        for name in METHODS:
            code, details = await status_of(channel, name)
            assert code not in (UNREACHED, DENIED), (name, code, details)
        assert controller.stopped.is_set()

    at_the_door(tmp_path, visit)


def test_an_intermediate_authority_in_place_of_its_root(tmp_path):
    """As issuers write ca.crt that know their own certificate only: both ends of gRPC accept it."""
    middle = sign(issuer=CA, common="middle")

    async def visit(channel_of: Callable[[Signed | None], Any], _: Controller, __: str) -> None:
        code, details = await status_of(channel_of(sign("master.a", issuer=middle)), "Describe")
        assert code not in (UNREACHED, DENIED), details

    at_the_door(tmp_path, visit, sign("worker.a", issuer=middle), middle)


@pytest.mark.parametrize(
    ("names", "authority", "reason"),
    [(["master.b"], CA, "Hostname Verification"), (["master.a"], OTHER_CA, "CERTIFICATE_VERIFY_FAILED")],
)
def test_a_master_whose_certificates_do_not_fit_is_told_so(tmp_path, names, authority, reason):
    """Not only that the time for connecting is up."""

    async def visit(_: Callable[[Signed | None], Any], controller: Controller, address: str) -> None:
        tls = TlsFolder(write(tmp_path / "m", sign(*names, issuer=authority), authority), "master")
        connection = WorkerConnection(address, tls)
        with pytest.raises(WorkerLostError, match=reason):
            await connection.describe(0.5)
        await connection.close()

    at_the_door(tmp_path, visit)
