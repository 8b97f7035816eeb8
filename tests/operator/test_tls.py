"""How a deployment comes to speak TLS: its pods, its Secrets, the operator's certificate, and what the status says."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from orca_operator import names
from orca_operator.actions import Apply, Check, Delete
from orca_operator.conditions import Situation, find_condition
from orca_operator.manifests.context import Context
from orca_operator.observe import Observed, certificate_secret
from orca_operator.plan import plan
from orca_operator.revision import certificate_source, revision_hash
from orca_operator.status import make_status
from support.orcadeployments import MINIMAL, UID, context, everything, live, merged, view

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
        for action in plan(found, view(Observed()))
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
    """Return a deployment in steady state whose revision an operator without TLS has rendered."""
    older = Context(found.name, found.namespace, UID, tls(mode="off").spec, found.revision, found.images)
    return everything(older)


def test_a_revision_that_began_with_plaintext_keeps_it():
    found = tls()
    observed = plaintext(found)
    assert certificate_source(found, observed) == ""
    for action in plan(found, view(observed)):
        assert not isinstance(action, Apply) or "orca-tls" not in str(action.manifest)
    assert observed.admin_port(found.revision).secret == ""
    assert certificate_source(found, Observed()) == OWN


def condition(
    found: Context, observed: Observed, kind: str, current: str = "", **situation: Any
) -> tuple[str, str, str]:
    """One condition of a deployment; `current` is the revision that served before."""
    made = Situation(found.name, found.namespace, 1, found.spec, found.revision, view(observed, NOW), **situation)
    entry = find_condition(make_status(made, {"currentRevision": current}), kind)
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
    waiting = plan(new, view(observed), has_certificates=False)
    assert {type(action) for action in waiting} == {Apply, Check}, "nothing is deleted"
    kinds = [action.manifest["kind"] for action in waiting if isinstance(action, Apply)]
    assert "Certificate" in kinds
    assert not {"Deployment", "StatefulSet"} & set(kinds)
    words = {ISSUED: "Secret demo-issued-master: does not exist"}
    known = {"current": old.revision, "certificates": ISSUED, "certificate_problems": words}
    status = condition(new, observed, "Ready", **known)
    assert status == ("False", "CertificateNotReady", words[ISSUED])
    assert condition(new, observed, "Available", **known)[0] == "True"
    running = everything(new)
    later = {
        action.manifest["kind"]
        for action in plan(new, view(running), has_certificates=False)
        if hasattr(action, "manifest")
    }
    assert "StatefulSet" in later, "a certificate that goes bad takes no running pod away"


def test_certificates_of_cert_manager():
    made = [action.manifest for action in plan(tls(**CERT_MANAGER), view(Observed())) if isinstance(action, Apply)]
    certificates = {found["metadata"]["name"]: found["spec"] for found in made if found["kind"] == "Certificate"}
    assert sorted(certificates) == ["demo-issued-master", "demo-issued-operator", "demo-issued-worker"]
    spec = certificates["demo-issued-worker"]
    assert spec["secretName"] == "demo-issued-worker"
    assert spec["dnsNames"] == ["worker.demo.default.orca-serving.io"]
    assert spec["issuerRef"] == {"name": "ours", "kind": "ClusterIssuer", "group": "cert-manager.io"}
    assert spec["usages"][1:] == ["server auth", "client auth"]
    assert (spec["duration"], spec["renewBefore"]) == ("2160h", "720h")
    workloads = ("Deployment", "StatefulSet")
    for kinds, deleted in ((workloads, 0), ((), 3)):  # they stay while an old revision uses them
        children = tuple(live(found) for found in made if found["kind"] not in workloads or found["kind"] in kinds)
        switched = plan(tls(mode="off"), view(Observed(children)))
        ended = [action.child["kind"] for action in switched if isinstance(action, Delete)]
        assert ended.count("Certificate") == deleted
