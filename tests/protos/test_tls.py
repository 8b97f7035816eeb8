"""`TlsFolder`: which certificates are taken, whose they are, and that new files are taken up."""

from __future__ import annotations

import datetime
import errno
import os
import re
import shutil
import socket
import ssl
import threading

import orca_protos.tls
import pytest
from orca_protos.tls import FILES, TlsError, TlsFolder, identity_of
from support.certificates import sign, write

CA = sign()
OTHER_CA = sign()


@pytest.mark.parametrize(
    ("names", "role", "identity"),
    [
        (["master.a.b.orca-serving.io"], "master", "a.b.orca-serving.io"),
        (["master.local.orca", "worker.local.orca", "operator.local.orca"], "worker", "local.orca"),
        (["d.default.svc", "Worker.Local.ORCA"], "worker", "local.orca"),
    ],
)
def test_the_identity_is_that_of_the_name_for_the_role(tmp_path, names, role, identity):
    folder = TlsFolder(write(tmp_path, sign(*names, issuer=CA), CA), role)
    assert folder.current().identity == identity


@pytest.mark.parametrize("names", [["master.a.b"], ["worker"], ["worker.*.b"], ["worker.a", "worker.b"], ["xworker.a"]])
def test_a_certificate_without_one_identity_is_refused(tmp_path, names):
    with pytest.raises(TlsError, match=rf"--tls-dir .*one DNS name worker.DEPLOYMENT.*{names[0].replace('*', '.')}"):
        TlsFolder(write(tmp_path, sign(*names, issuer=CA), CA), "worker")
    assert identity_of("worker.a", "master") == ""


def test_files_that_do_not_fit_are_refused_in_one_line(tmp_path):
    good = sign("worker.a", issuer=CA)
    expired = sign("worker.a", issuer=CA, ends=-datetime.timedelta(hours=1))
    folders = {
        "of another CA": write(tmp_path / "a", good, OTHER_CA),
        "expired": write(tmp_path / "b", expired, CA),
        "key of another": write(tmp_path / "c", good, CA),
        "no key": write(tmp_path / "d", good, CA),
        "no CA": write(tmp_path / "e", good),
        "not PEM": write(tmp_path / "f", good, CA),
        "not text": write(tmp_path / "g", good, CA),
    }
    (tmp_path / "c" / "tls.key").unlink()
    (tmp_path / "c" / "tls.key").write_bytes(sign("worker.a", issuer=CA).key_pem)
    (tmp_path / "d" / "tls.key").unlink()
    for folder, content in (("f", b"certificate"), ("g", b"\xff\x00")):
        (tmp_path / folder / "ca.crt").unlink()
        (tmp_path / folder / "ca.crt").write_bytes(content)
    for folder in folders.values():
        with pytest.raises(TlsError, match=f"--tls-dir {folder}: [^\n]+$"):
            TlsFolder(folder, "worker")
    with pytest.raises(TlsError, match="No such file"):
        TlsFolder(tmp_path / "nothing", "worker")


def test_new_files_are_taken_up_and_bad_ones_are_not(tmp_path):
    tls = TlsFolder(write(tmp_path, sign("worker.a", issuer=CA), CA), "worker")
    first = tls.current()
    assert tls.current() is first
    write(tmp_path, sign("worker.a", issuer=CA), CA, OTHER_CA)
    second = tls.current()
    assert second != first
    write(tmp_path, sign("worker.a", issuer=CA), OTHER_CA)  # its own CA is not among them
    assert tls.current() is second
    shutil.move(tmp_path / "..data", tmp_path / "..away")
    assert tls.current() is second
    write(tmp_path, sign("worker.a", issuer=OTHER_CA), OTHER_CA)
    assert tls.current().authorities == OTHER_CA.pem
    assert set(FILES) < {path.name for path in tmp_path.iterdir()}


class FailsOnce:
    """Memory files of a process whose first `open` has no file descriptor left; counts the reads of certificates."""

    def __init__(self) -> None:
        self.num_calls = 0
        self._open = os.memfd_create

    def __call__(self, name: str) -> int:
        self.num_calls += 1
        if self.num_calls == 1:
            raise OSError(errno.EMFILE, "Too many open files")
        return self._open(name)


def test_a_failed_read_is_tried_again(tmp_path, monkeypatch, caplog):
    """Without new files: a descriptor becomes free, or the time of validity begins."""
    tls = TlsFolder(write(tmp_path, sign("worker.a", issuer=CA), CA), "worker")
    first = tls.current()
    fails = FailsOnce()
    monkeypatch.setattr(os, "memfd_create", fails)
    monkeypatch.setattr(orca_protos.tls, "RETRY_SECONDS", 3600.0)
    write(tmp_path, sign("worker.a", issuer=CA), CA)
    assert [tls.current() is first for _ in range(3)] == [True] * 3
    assert fails.num_calls == 1
    monkeypatch.setattr(orca_protos.tls, "RETRY_SECONDS", 0.0)
    second = tls.current()
    assert second != first
    num_calls = fails.num_calls
    assert tls.current() is second
    assert fails.num_calls == num_calls, "certificates in use are not read again"
    (warning,) = [record.getMessage() for record in caplog.records]
    assert warning.endswith("Too many open files; the previous certificates stay in use")


def test_each_reason_is_logged_once(tmp_path, monkeypatch, caplog):
    tls = TlsFolder(write(tmp_path, sign("worker.a", issuer=CA), CA), "worker")
    monkeypatch.setattr(orca_protos.tls, "RETRY_SECONDS", 0.0)
    future = sign("worker.a", issuer=CA, begins=datetime.timedelta(hours=1))
    expired = sign("worker.a", issuer=CA, ends=-datetime.timedelta(hours=1))
    for signed in (future, expired):
        write(tmp_path, signed, CA)
        for _ in range(3):
            tls.current()
    messages = [record.getMessage() for record in caplog.records]
    assert [re.findall("not yet valid|has expired", message) for message in messages] == [
        ["not yet valid"],
        ["has expired"],
    ]


def test_grpc_gets_a_configuration_for_new_files_alone(tmp_path):
    """gRPC replaces its factory of handshakers with every configuration, also beside handshakes under way."""
    tls = TlsFolder(write(tmp_path, sign("worker.a", issuer=CA), CA), "worker")
    fetch = tls.configurations_after(tls.current())
    assert [fetch(), fetch()] == [None, None]
    write(tmp_path, sign("worker.a", issuer=CA), CA)
    assert fetch() is not None
    assert [fetch(), fetch()] == [None, None]


def test_a_server_outside_of_grpc_follows_the_files(tmp_path):
    """Old clients are refused once their CA is gone; a client without a certificate always is."""
    tls = TlsFolder(write(tmp_path / "s", sign("master.a", issuer=CA), CA), "master")
    old = TlsFolder(write(tmp_path / "c", sign("master.a", issuer=CA), CA, OTHER_CA), "master").current()
    new = TlsFolder(write(tmp_path / "n", sign("master.a", issuer=OTHER_CA), CA, OTHER_CA), "master").current()
    bare = ssl.create_default_context(cadata=(CA.pem + OTHER_CA.pem).decode())
    context = tls.server_context()

    def answered(client: ssl.SSLContext, name: str = "master.a") -> bool:
        ours, theirs = socket.socketpair()
        server = threading.Thread(target=answer, args=(context, theirs))
        server.start()
        try:
            ours.settimeout(30)
            with client.wrap_socket(ours, server_hostname=name) as connection:
                return connection.recv(1) == b"x"
        except (ssl.SSLError, ConnectionError):
            return False
        finally:
            ours.close()
            server.join(30)

    assert answered(old.client_context())
    assert not answered(old.client_context(), "master.b")
    assert not answered(new.client_context())
    assert not answered(bare)
    write(tmp_path / "s", sign("master.a", issuer=OTHER_CA), OTHER_CA)
    assert answered(new.client_context())
    assert not answered(old.client_context())
    assert not answered(bare)


def answer(context: ssl.SSLContext, connection: socket.socket) -> None:
    try:
        with context.wrap_socket(connection, server_side=True) as secured:
            secured.sendall(b"x")
    except (ssl.SSLError, ConnectionError):
        connection.close()
