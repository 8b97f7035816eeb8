"""The certificates of one OrcaDeployment over Secrets in memory: which are made, checked, renewed and used."""

from __future__ import annotations

import base64
from datetime import UTC, datetime, timedelta
from typing import Any

import kubernetes_validate
from orca_operator import names
from orca_operator.certificate_keeper import CHECK_INTERVAL, CertificateKeeper
from orca_operator.certificates import AUTHORITIES, CERTIFICATE, KEY, KeyPair, issue, make_authority, problem
from orca_operator.cluster import ClusterError
from orca_operator.execute import Executor
from orca_operator.manifests.context import Owner
from support.orcadeployments import UID

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
PROPAGATION = timedelta(minutes=5)
OWN, ISSUED = names.own_secret("demo", names.MASTER), names.issued("demo", names.MASTER)


class Server:
    """Secrets by name; counts calls, notes writes."""

    def __init__(self) -> None:
        self.secrets: dict[str, dict[str, Any]] = {}
        self.reads = 0
        self.written: list[str] = []
        self.refusal: ClusterError | None = None

    def get(self, kind: str, namespace: str, name: str) -> dict[str, Any] | None:
        assert (kind, namespace) == ("Secret", "default")
        self.reads += 1
        return self.secrets.get(name)

    def apply(self, manifest: dict[str, Any]) -> dict[str, Any]:
        if self.refusal is not None:
            raise self.refusal
        kubernetes_validate.validate(manifest, "1.36", strict=True)
        self.secrets[manifest["metadata"]["name"]] = {**manifest, "metadata": {**manifest["metadata"], "uid": "x"}}
        self.written.append(manifest["metadata"]["name"])
        return manifest

    def delete(self, kind: str, namespace: str, name: str, uid: str) -> None:
        del self.secrets[name]

    def put(self, name: str, **data: bytes) -> None:
        encoded = {key: base64.b64encode(value).decode() for key, value in data.items()}
        self.secrets[name] = {"kind": "Secret", "metadata": {"name": name, "uid": "theirs"}, "data": encoded}

    def content(self, name: str) -> dict[str, bytes]:
        return {key: base64.b64decode(value) for key, value in self.secrets[name]["data"].items()}


def keeper(server: Server) -> CertificateKeeper:
    return CertificateKeeper(Executor(server), Owner("demo", "default", UID), PROPAGATION)  # type: ignore[arg-type]


def dns_name(role: str) -> str:
    return names.dns_name(role, "demo", "default")


def test_self_signed_secrets_are_made_and_the_operators_key_is_in_none():
    server = Server()
    kept = keeper(server)
    kept.refresh({OWN}, "", NOW)
    assert server.written == ["demo-tls-ca", "demo-tls-master", "demo-tls-worker"]
    for role in (names.MASTER, names.WORKER):
        secret = server.secrets[f"demo-tls-{role}"]
        assert secret["type"] == "kubernetes.io/tls"
        assert secret["metadata"]["ownerReferences"][0]["uid"] == UID
        assert problem(server.content(f"demo-tls-{role}"), [dns_name(role)], NOW) == ""
    assert kept.problems == {OWN: ""}
    mine = kept.credentials[OWN]
    assert mine.server_name == dns_name(names.MASTER)
    data = {CERTIFICATE: mine.certificate, KEY: mine.key, AUTHORITIES: mine.authorities}
    assert problem(data, [dns_name(names.OPERATOR)], NOW) == ""
    assert mine.key.decode() not in str([server.content(name) for name in server.secrets])


def test_secrets_are_read_once_a_minute_and_the_operators_certificate_is_kept():
    server = Server()
    kept = keeper(server)
    for second in range(0, 300, 5):
        kept.refresh({OWN}, "", NOW + timedelta(seconds=second))
    assert len(server.written) == 3
    assert server.reads == 3 * (1 + 5)
    first = kept.credentials[OWN]
    kept.refresh({OWN}, "", NOW + timedelta(days=50))
    assert kept.credentials[OWN] == first
    kept.refresh({OWN}, "", NOW + timedelta(days=61))
    assert kept.credentials[OWN].certificate != first.certificate
    assert kept.credentials[OWN].authorities == first.authorities


def test_a_request_is_acted_on_at_once():
    server = Server()
    kept = keeper(server)
    kept.refresh({OWN}, "", NOW)
    kept.refresh({OWN}, "", NOW)
    server.written.clear()
    kept.refresh({OWN}, "now", NOW + timedelta(seconds=5))
    assert server.written == ["demo-tls-ca", "demo-tls-master", "demo-tls-worker"]
    assert kept.credentials[OWN].authorities == server.content("demo-tls-worker")[AUTHORITIES]


def test_another_operator_goes_on_where_one_stopped():
    server = Server()
    keeper(server).refresh({OWN}, "", NOW)
    server.written.clear()
    keeper(server).refresh({OWN}, "", NOW + CHECK_INTERVAL)
    assert server.written == []


def test_secrets_of_somebody_else_are_left_alone_and_named():
    server = Server()
    server.put("demo-tls-ca", token=b"theirs")
    kept = keeper(server)
    kept.refresh({OWN}, "", NOW)
    assert "a Secret named demo-tls-ca exists and is not ORCA's" in kept.problems[OWN]
    assert server.content("demo-tls-ca") == {"token": b"theirs"}
    server.secrets.clear()
    server.refusal = ClusterError(403, "may not patch secrets")
    kept.refresh({OWN}, "", NOW + timedelta(seconds=5))
    assert kept.problems[OWN] == "Secret demo-tls-ca: may not patch secrets"
    server.refusal = None
    kept.refresh({OWN}, "", NOW + timedelta(seconds=10))
    assert kept.problems[OWN] == ""


def test_the_users_own_secret_is_checked_and_used():
    server, authority = Server(), make_authority(NOW)
    kept = keeper(server)
    roles = (names.MASTER, names.WORKER, names.OPERATOR)
    wanted = [dns_name(role) for role in roles]
    kept.refresh({"mine"}, "", NOW)
    assert kept.problems["mine"] == "Secret mine: does not exist"
    half, whole = issue(authority, wanted[:1], NOW), issue(authority, wanted, NOW)
    server.put("mine", **{CERTIFICATE: half.certificate, KEY: half.key, AUTHORITIES: authority.certificate})
    kept.refresh({"mine"}, "", NOW)
    assert kept.problems["mine"] == f"Secret mine: tls.crt lacks the DNS name {wanted[1]}, {wanted[2]}"
    assert "mine" not in kept.credentials
    server.put("mine", **{CERTIFICATE: whole.certificate, KEY: whole.key, AUTHORITIES: authority.certificate})
    kept.refresh({"mine"}, "", NOW)
    assert kept.problems["mine"] == ""
    assert kept.credentials["mine"].certificate == whole.certificate
    assert server.written == []


def test_cert_managers_secrets_each_carry_their_role():
    server, authority = Server(), make_authority(NOW)
    kept = keeper(server)
    for role in (names.MASTER, names.OPERATOR):
        pair = issue(authority, [dns_name(role)], NOW)
        data = {CERTIFICATE: pair.certificate, KEY: pair.key}
        server.put(names.issued("demo", role), **data, **{AUTHORITIES: authority.certificate})
    kept.refresh({ISSUED}, "", NOW)
    assert kept.problems[ISSUED] == "Secret demo-issued-worker: does not exist"
    pair = issue(authority, [dns_name(names.WORKER)], NOW)
    server.put("demo-issued-worker", **{CERTIFICATE: pair.certificate, KEY: pair.key})
    kept.refresh({ISSUED}, "", NOW)
    assert kept.problems[ISSUED] == "Secret demo-issued-worker: has no ca.crt"
    server.put(
        "demo-issued-worker", **{CERTIFICATE: pair.certificate, KEY: pair.key, AUTHORITIES: authority.certificate}
    )
    kept.refresh({ISSUED}, "", NOW)
    assert kept.problems[ISSUED] == ""
    assert kept.credentials[ISSUED].authorities == authority.certificate


def test_cert_managers_secrets_verify_each_other():
    """After a change of the issuer's key, each Secret is valid by itself, but a new one is not trusted."""
    server, before, after = Server(), make_authority(NOW), make_authority(NOW)
    kept = keeper(server)

    def put(role: str, authority: KeyPair, bundle: bytes) -> None:
        pair = issue(authority, [dns_name(role)], NOW)
        data = {CERTIFICATE: pair.certificate, KEY: pair.key, AUTHORITIES: bundle}
        server.put(names.issued("demo", role), **data)

    for role in (names.MASTER, names.WORKER, names.OPERATOR):
        put(role, before, before.certificate)
    kept.refresh({ISSUED}, "", NOW)
    assert kept.problems[ISSUED] == ""
    put(names.WORKER, after, after.certificate)
    later = NOW + CHECK_INTERVAL
    kept.refresh({ISSUED}, "", later)
    assert kept.problems[ISSUED].split("; ") == [
        f"Secrets {first} and {second}: the ca.crt of one does not verify the tls.crt of the other, as after a change "
        f"of the issuer's key: renew both (cmctl renew -n default {first} {second})"
        for first, second in (
            ("demo-issued-master", "demo-issued-worker"),
            ("demo-issued-operator", "demo-issued-worker"),
        )
    ]
    put(names.OPERATOR, before, before.certificate)
    kept.refresh({ISSUED}, "", later)
    current = server.content("demo-issued-operator")[CERTIFICATE]
    assert kept.credentials[ISSUED].certificate == current, "operator and master accept each other"
    put(names.WORKER, after, before.certificate + after.certificate)
    kept.refresh({ISSUED}, "", later)
    assert "demo-issued-master and demo-issued-worker" in kept.problems[ISSUED], "the master refuses the worker"
    for role in (names.MASTER, names.OPERATOR):
        put(role, after, after.certificate)
    kept.refresh({ISSUED}, "", later)
    assert kept.problems[ISSUED] == ""
