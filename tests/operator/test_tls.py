"""How a deployment comes to speak TLS: its pods, its Secrets, the operator's certificate, and what the status says."""

from __future__ import annotations

import base64
from datetime import UTC, datetime, timedelta
from typing import Any

import kubernetes_validate
import pytest
from orca_operator import names
from orca_operator.certificate_keeper import CHECK_INTERVAL, CertificateKeeper
from orca_operator.certificates import AUTHORITIES, CERTIFICATE, KEY, issue, make_authority, problem
from orca_operator.cluster import ClusterError
from orca_operator.conditions import Situation, find_condition
from orca_operator.execute import Executor
from orca_operator.manifests.context import Context, Owner
from orca_operator.observe import Observed, certificate_secret
from orca_operator.plan import Apply, plan
from orca_operator.revision import certificate_source, revision_hash
from orca_operator.status import make_status
from support.orcadeployments import MINIMAL, UID, context, everything, live, merged, pod, report

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
PROPAGATION = timedelta(minutes=5)
SECRET = {"mode": "secret", "secretName": "mine"}
CERT_MANAGER = {"mode": "certManager", "issuerRef": {"name": "ours", "kind": "ClusterIssuer"}}
OWN, ISSUED = names.own_secret("demo", names.MASTER), names.issued("demo", names.MASTER)


def tls(**settings: Any) -> Context:
    return context(merged(MINIMAL, tls=settings))


def pods(found: Context) -> dict[str, dict[str, Any]]:
    """Pod specs of a new revision by the name of their container."""
    templates = [
        action.manifest["spec"]["template"]["spec"]
        for action in plan(found, Observed())
        if isinstance(action, Apply) and action.manifest["kind"] in ("Deployment", "StatefulSet")
    ]
    return {template["containers"][0]["name"]: template for template in templates}


@pytest.mark.parametrize(
    ("settings", "master", "worker"),
    [
        ({}, "demo-tls-master", "demo-tls-worker"),
        ({"enabled": False}, "demo-tls-master", "demo-tls-worker"),
        ({"enabled": True}, "demo-tls-master", "demo-tls-worker"),
        ({"mode": "selfSigned"}, "demo-tls-master", "demo-tls-worker"),
        (SECRET, "mine", "mine"),
        (CERT_MANAGER, "demo-issued-master", "demo-issued-worker"),
        ({"mode": "off"}, "", ""),
    ],
)
def test_what_pods_mount_and_are_told(settings, master, worker):
    found = pods(tls(**settings))
    assert (certificate_secret(found["master"]), certificate_secret(found["worker"])) == (master, worker)
    for pod_spec in found.values():
        (container,) = pod_spec["containers"]
        mounts = [mount for mount in container["volumeMounts"] if mount["name"] == names.CERTIFICATE_VOLUME]
        if not master:
            assert "--insecure" in container["args"]
            assert "--tls-dir" not in str(container)
            assert mounts == []
            continue
        (mount,) = mounts
        assert mount == {"name": "orca-tls", "mountPath": "/etc/orca-tls", "readOnly": True}, "no subPath: it changes"
        for command in (container["args"], container.get("lifecycle", {"preStop": None})["preStop"]):
            if command:
                words = command if isinstance(command, list) else command["exec"]["command"]
                assert words[words.index("--tls-dir") + 1] == mount["mountPath"]
    assert names.own_secret("demo", "ca") not in str(found), "no pod holds the authority's key"


def test_only_an_explicit_mode_makes_a_revision():
    base = revision_hash(tls().spec)
    assert {revision_hash(tls(enabled=enabled).spec) for enabled in (True, False)} == {base}
    explicit = [{"mode": "selfSigned"}, {"mode": "off"}, SECRET, SECRET | {"secretName": "other"}, CERT_MANAGER]
    hashes = {revision_hash(tls(**settings).spec) for settings in explicit}
    assert len(hashes) == len(explicit)
    assert base not in hashes


def plaintext(found: Context) -> Observed:
    """A deployment in steady state whose revision an operator without TLS has rendered."""
    older = Context(found.name, found.namespace, UID, tls(mode="off").spec, found.revision, found.images)
    return everything(older)


def test_a_revision_that_began_with_plaintext_keeps_it():
    found = tls()
    observed = plaintext(found)
    assert certificate_source(found, observed) == ""
    for action in plan(found, observed):
        assert not isinstance(action, Apply) or "orca-tls" not in str(action.manifest)
    assert observed.admin_port(found.revision).secret == ""
    assert certificate_source(found, Observed()) == OWN


def condition(
    found: Context, observed: Observed, kind: str, current: str = "", **situation: Any
) -> tuple[str, str, str]:
    """One condition of a deployment; `current` is the revision that served before."""
    made = Situation(found.name, found.namespace, 1, found.spec, found.revision, observed, **situation)
    entry = find_condition(make_status(made, {"currentRevision": current}, NOW), kind)
    return entry["status"], entry["reason"], entry["message"]


def test_the_status_says_how_the_revision_that_serves_speaks():
    found = tls()
    secured = condition(found, everything(found), "TLSReady", certificates=OWN)
    assert secured[:2] == ("True", "MutualTLS")
    old = condition(found, plaintext(found), "TLSReady", certificates="")
    assert old[:2] == ("False", "PlaintextRevision")
    assert "spec.restart.id" in old[2]
    assert condition(found, plaintext(found), "Ready")[:2] == ("True", "Serving")
    off = tls(mode="off")
    assert condition(off, everything(off), "TLSReady")[:2] == ("False", "Off")
    mine = tls(**SECRET)
    words = {"mine": "Secret mine: tls.crt expired at 2026-01-01T00:00:00Z"}
    late = condition(mine, everything(mine), "TLSReady", certificates="mine", certificate_problems=words)
    assert late == ("False", "CertificateNotReady", words["mine"])
    assert condition(mine, everything(mine), "Ready", certificates="mine", certificate_problems=words)[0] == "True"


def test_a_new_revision_waits_for_its_certificates_and_the_old_one_serves_on():
    old, new = tls(), tls(**CERT_MANAGER)
    observed = everything(old)
    waiting = plan(new, observed, has_certificates=False)
    kinds = [action.manifest["kind"] for action in waiting if isinstance(action, Apply)]
    assert len(kinds) == len(waiting), "nothing is deleted"
    assert "Certificate" in kinds
    assert not {"Deployment", "StatefulSet"} & set(kinds)
    words = {ISSUED: "Secret demo-issued-master: does not exist"}
    known = {"current": old.revision, "certificates": ISSUED, "certificate_problems": words}
    status = condition(new, observed, "Ready", **known)
    assert status == ("False", "CertificateNotReady", words[ISSUED])
    assert condition(new, observed, "Available", **known)[0] == "True"
    running = everything(new)
    later = {
        action.manifest["kind"] for action in plan(new, running, has_certificates=False) if hasattr(action, "manifest")
    }
    assert "StatefulSet" in later, "a certificate that goes bad takes no running pod away"


def test_certificates_of_cert_manager():
    made = [action.manifest for action in plan(tls(**CERT_MANAGER), Observed()) if isinstance(action, Apply)]
    certificates = {found["metadata"]["name"]: found["spec"] for found in made if found["kind"] == "Certificate"}
    assert sorted(certificates) == ["demo-issued-master", "demo-issued-operator", "demo-issued-worker"]
    spec = certificates["demo-issued-worker"]
    assert spec["secretName"] == "demo-issued-worker"
    assert spec["dnsNames"] == ["worker.demo.default.orca-serving.io"]
    assert spec["issuerRef"] == {"name": "ours", "kind": "ClusterIssuer", "group": "cert-manager.io"}
    assert spec["usages"][1:] == ["server auth", "client auth"]
    assert (spec["duration"], spec["renewBefore"]) == ("2160h", "720h")
    switched = plan(tls(mode="off"), Observed(tuple(live(found) for found in made)))
    assert sum(not isinstance(action, Apply) and action.child["kind"] == "Certificate" for action in switched) == 3


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


def test_how_a_master_is_reached_is_read_from_its_pod():
    found = tls()
    master = pod(found, names.MASTER, ready=True)
    master["spec"] = master["spec"] | {"volumes": [{"name": "orca-tls", "secret": {"secretName": OWN}}]}
    observed = Observed((master,), {found.revision: report(found)})
    port = observed.admin_port(found.revision)
    assert (port.address, port.secret) == ("10.0.0.1:8082", OWN)
