"""The workers' door and the admin port with certificates, on real processes: strangers, and certificates that change.

Every method of a worker by every kind of stranger is in tests/worker/test_door.py.
"""

from __future__ import annotations

import asyncio
import itertools
import ssl
import stat
import threading
from pathlib import Path

import grpc
import grpc.aio
import httpx
import pytest
from orca_master.commands.local_workers import LocalWorkers
from orca_protos import engine_pb2 as pb
from orca_protos.engine_pb2_grpc import WorkerStub
from orca_protos.tls import TlsFolder
from support.certificates import Signed, sign, write
from support.cluster import NAME, TOKEN, Cluster
from support.served import descendants, eventually

pytestmark = pytest.mark.long
OLD, NEW = sign(), sign()
NAMES = ("master.local.orca", "worker.local.orca", "operator.local.orca")


@pytest.fixture(scope="module")
def cluster(checkpoint, tmp_path_factory):
    folder = tmp_path_factory.mktemp("doors")
    made = Cluster(checkpoint(NAME), folder, write(folder / "tls", sign(*NAMES, issuer=OLD), OLD))
    for index in range(2):
        made.start_worker(index)
    made.start_master()
    try:
        assert eventually(lambda: made.probe(made.master_probe, "/readyz") == 200), made.log
        yield made
    finally:
        made.stop()


def operator(folder: Path, signed: Signed, *authorities: Signed) -> ssl.SSLContext:
    """Return the TLS context of whoever has this certificate for all roles."""
    return TlsFolder(write(folder, signed, *authorities), "master").current().client_context()


def status(cluster: Cluster, context: ssl.SSLContext, token: str = TOKEN, name: str = "master.local.orca") -> int:
    """Return the status of `GET /state` over TLS; raise httpx.TransportError if there is no connection."""
    with httpx.Client(verify=context, timeout=30, trust_env=False) as client:
        return client.get(
            f"https://127.0.0.1:{cluster.admin}/state",
            headers={"Authorization": f"Bearer {token}"},
            extensions={"sni_hostname": name},
        ).status_code


def test_a_stranger_at_a_workers_port(cluster):
    """In plain text, without a certificate, with one of another CA: no call arrives, and the worker serves on."""
    stranger = sign(*NAMES, issuer=NEW)
    credentials = {
        "no certificate": grpc.ssl_channel_credentials(OLD.pem),
        "another CA": grpc.ssl_channel_credentials(OLD.pem, stranger.key_pem, stranger.pem),
        "plain text": None,
    }

    async def run() -> None:
        options = [("grpc.ssl_target_name_override", "worker.local.orca")]
        for port, (who, own) in itertools.product(cluster.ports[:2], credentials.items()):
            address = f"127.0.0.1:{port}"
            made = grpc.aio.secure_channel(address, own, options) if own else grpc.aio.insecure_channel(address)
            async with made as channel:
                stub = WorkerStub(channel)
                load = pb.LoadRequest(environment={"PYTHONWARNINGS": "x", "BROWSER": "x"})
                for call in (
                    stub.Describe(pb.DescribeRequest(), timeout=30),
                    stub.Load(load, timeout=30).read(),
                    stub.Prepare(pb.PrepareRequest(epoch=2**64 - 1), timeout=30),
                    stub.Rendezvous(pb.RendezvousRequest(epoch=1, key="a", value=b""), timeout=30),
                    stub.Shutdown(pb.ShutdownRequest(), timeout=30),
                ):
                    with pytest.raises(grpc.aio.AioRpcError) as error:
                        await call
                    assert error.value.code() is grpc.StatusCode.UNAVAILABLE, who

    asyncio.run(run())
    assert cluster.ask(max_tokens=5)


def test_no_rendezvous_store_listens(cluster):
    """A rank listens on one port: gloo's, for tensors. torch's store would be a second one, of the first rank.

    A spare, which starts some seconds after the formation, listens on none.
    """
    for worker in cluster.workers.values():
        processes = descendants(worker.pid)
        assert sum(map(listening_sockets, processes)) == 1, processes


def listening_sockets(pid: int) -> int:
    """How many TCP sockets of a process listen."""
    tables = [Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:] for name in ("tcp", "tcp6")]
    rows = [line.split() for line in itertools.chain(*tables)]
    listening = {f"socket:[{row[9]}]" for row in rows if row[3] == "0A"}
    links = [link.readlink() for link in Path(f"/proc/{pid}/fd").iterdir() if link.is_symlink()]
    return sum(str(target) in listening for target in links)


def test_a_stranger_at_the_admin_port(cluster, tmp_path):
    """The token alone opens nothing; a certificate without the token neither."""
    with pytest.raises(httpx.TransportError):
        cluster.call("GET", "/state")
    bare = ssl.create_default_context(cadata=OLD.pem.decode())
    with pytest.raises(httpx.TransportError):
        status(cluster, bare)
    with pytest.raises(httpx.TransportError):
        status(cluster, operator(tmp_path / "stranger", sign(*NAMES, issuer=NEW), NEW, OLD))
    good = operator(tmp_path / "operator", sign(*NAMES, issuer=OLD), OLD)
    assert status(cluster, good) == 200
    assert status(cluster, good, token="wrong") == 401
    with pytest.raises(httpx.TransportError):
        status(cluster, good, name="master.other.orca")


def test_certificates_are_replaced_under_load(cluster, tmp_path):
    """The new CA is trusted, then signs, then the old one is removed: no request fails. Then a pipeline forms anew."""
    folder, stop = cluster.folder / "tls", threading.Event()
    answers: list[int] = []
    failures: list[BaseException] = []

    def ask() -> None:
        while not stop.is_set():
            try:
                answers.append(len(cluster.ask(max_tokens=20)))
            except BaseException as error:
                failures.append(error)

    old = operator(tmp_path / "old", sign(*NAMES, issuer=OLD), OLD, NEW)
    new = operator(tmp_path / "new", sign(*NAMES, issuer=NEW), NEW)
    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for certificate, authorities in (
            (sign(*NAMES, issuer=OLD), (OLD, NEW)),
            (sign(*NAMES, issuer=NEW), (OLD, NEW)),
            (sign(*NAMES, issuer=NEW), (NEW,)),
        ):
            before = len(answers)
            write(folder, certificate, *authorities)
            assert status(cluster, old if OLD in authorities else new) == 200
            assert eventually(lambda before=before: len(answers) > before + 3)
    finally:
        stop.set()
        for thread in threads:
            thread.join(100)
    assert failures == []
    assert set(answers) == {20}
    with pytest.raises(httpx.TransportError):
        status(cluster, old)
    cluster.workers[1].kill()
    cluster.workers[1].wait()
    assert eventually(lambda: any(" is lost: " in line for line in cluster.log))
    cluster.start_worker(1)
    assert len(cluster.ask(max_tokens=20)) == 20, "it waits for the worker"


def test_unix_sockets_of_orca_serve_are_private():
    with LocalWorkers(1) as workers:
        folder = Path(workers.addresses[0].removeprefix("unix:")).parent
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
