"""Which edits make a revision, and which stored revisions are kept."""

from __future__ import annotations

from orca_operator import names
from orca_operator.actions import Apply, Delete
from orca_operator.observe import Observed, label
from orca_operator.plan import plan
from orca_operator.revision import KEPT_REVISIONS, revision_hash, spec_revision, surplus
from support.orcadeployments import MINIMAL, context, live, merged, view


def manifests(actions) -> dict:
    return {(a.manifest["kind"], a.manifest["metadata"]["name"]): a.manifest for a in actions if isinstance(a, Apply)}


def test_what_changes_pods_makes_a_revision_and_nothing_else_does():
    base = revision_hash(context(MINIMAL).spec)
    live_changes = [
        {"replicas": 5}, {"suspend": True}, {"drainTimeoutSeconds": 5}, {"service": {"type": "NodePort"}},
        {"scheduler": {"maxBatchSize": 4}}, {"monitoring": {"enabled": True}}, {"networkPolicy": {"enabled": False}},
        {"scheduler": {"admission": "paged", "policy": "priority"}},
        {"recoveryPolicy": {"stallTimeoutSeconds": 9, "recoveryTimeoutSeconds": 9}},
        {"recoveryPolicy": {"maxRestarts": 3}}, {"autoscaling": {"maxReplicas": 3}}, {"replicas": 1},
        {"model": {"uri": "file:///models/demo", "dtype": "auto"}},
    ]  # fmt: skip
    for change in live_changes:
        assert revision_hash(context({**MINIMAL, **change}).spec) == base, change
    pod_changes = [
        {"model": {"uri": "file:///models/other"}}, {"parallelism": {"tensorParallelSize": 2}},
        {"worker": {"image": "x"}}, {"restart": {"id": "1"}}, {"scheduler": {"kvSlots": 64}},
        {"communication": {"backend": "gloo"}}, {"imagePullPolicy": "Always"},
        {"master": {"apiProcesses": 2}}, {"tls": {"mode": "off"}}, {"tls": {"mode": "selfSigned"}},
        {"tls": {"mode": "secret", "secretName": "one"}}, {"tls": {"mode": "secret", "secretName": "two"}},
        {"tls": {"mode": "certManager", "issuerRef": {"name": "one"}}},
        {"tls": {"mode": "certManager", "issuerRef": {"name": "two"}}},
        {"auth": {"apiKeySecretRef": {"name": "one"}}}, {"auth": {"apiKeySecretRef": {"name": "two"}}},
        {"auth": {"apiKeySecretRef": {"name": "one", "key": "other"}}}, {"imagePullSecrets": [{"name": "one"}]},
        {"model": {"uri": "hf://o/m", "secretRef": {"name": "one"}}},
        {"model": {"uri": "hf://o/m", "secretRef": {"name": "two"}}},
        {"master": {"journal": {"claimName": "one"}}}, {"model": {"uri": "hf://o/m", "cache": {"claimName": "one"}}},
        {"master": {"otlpTracesEndpoint": "http://a:4317"}},
    ]  # fmt: skip
    hashes = {revision_hash(context({**MINIMAL, **change}).spec) for change in pod_changes}
    assert len(hashes) == len(pod_changes)
    assert base not in hashes


def test_a_revision_whose_hash_contains_the_admission_is_kept_while_it_has_workloads():
    """As operators before version 4 of the contract computed it: an upgrade of the operator restarts no pod."""
    paged = context(merged(MINIMAL, scheduler={"admission": "paged", "kvSlots": 64})).spec
    reserve = context(merged(MINIMAL, scheduler={"kvSlots": 64})).spec
    former, today = "f0b9d8", revision_hash(paged)
    assert revision_hash(reserve) == today
    assert spec_revision(paged, []) == today
    assert spec_revision(paged, ["other", former]) == former
    assert spec_revision(paged, [today, former]) == today
    assert spec_revision(reserve, [former]) == today, "an edit begins a revision that changes its admission live"
    plain = context(merged(MINIMAL, scheduler={"admission": "paged"})).spec
    assert spec_revision(plain, ["114ded"]) == "114ded"


def test_old_revisions_are_kept_up_to_a_limit():
    found = context(MINIMAL)
    stored = []
    for number in range(8):
        other = context(merged(MINIMAL, restart={"id": str(number)}))
        (revision,) = (m for (kind, _), m in manifests(plan(other, view(Observed(tuple(stored))))).items()
                       if kind == "ControllerRevision")  # fmt: skip
        assert revision["revision"] == number + 1
        stored.append(live(revision))
    gone = surplus(Observed(tuple(stored)), {label(stored[0], names.REVISION_LABEL)})
    assert [revision["revision"] for revision in gone] == [2, 3, 4]
    assert len(stored) - len(gone) == KEPT_REVISIONS
    assert found.revision not in {label(revision, names.REVISION_LABEL) for revision in stored}


def test_new_labels_of_pods_restart_none_that_an_older_operator_created():
    """The stored rendering keeps the templates; only the objects around them get the labels."""
    added = {names.PART_OF_LABEL, names.VERSION_LABEL, *names.ENGINE_TYPE}

    def without_added(value):
        if isinstance(value, dict):
            return {key: without_added(entry) for key, entry in value.items() if key not in added}
        return [without_added(entry) for entry in value] if isinstance(value, list) else value

    found = context(MINIMAL)
    new = manifests(plan(found, view(Observed())))
    older = {key: without_added(manifest) for key, manifest in new.items()}
    assert older != new
    again = manifests(plan(found, view(Observed(tuple(live(manifest) for manifest in older.values())))))
    workloads = [key for key in new if key[0] in ("Deployment", "StatefulSet")]
    assert len(workloads) == 2
    for key in workloads:
        assert again[key]["spec"]["template"] == older[key]["spec"]["template"]
        assert again[key]["metadata"]["labels"] == new[key]["metadata"]["labels"]
    (revision,) = (key for key in new if key[0] == "ControllerRevision")
    assert again[revision]["data"] == older[revision]["data"]
    assert manifests(plan(found, view(Observed((live(older[revision]),)))))[workloads[0]] == new[workloads[0]], (
        "a revision without workloads is rendered anew"
    )


def test_revisions_of_stateful_sets_are_not_ours():
    found = context(MINIMAL)
    foreign = {
        "kind": "ControllerRevision", "revision": 7, "data": {},
        "metadata": {"name": "demo-x-p0-123", "labels": names.labels("demo"),
                     "ownerReferences": [{"kind": "StatefulSet", "uid": "x", "controller": True}]},
    }  # fmt: skip
    actions = plan(found, view(Observed((foreign,))))
    assert not [action for action in actions if isinstance(action, Delete)]
    (revision,) = (m for (kind, _), m in manifests(actions).items() if kind == "ControllerRevision")
    assert revision["revision"] == 1
