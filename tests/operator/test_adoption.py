"""Which objects without an owner are adopted; scenarios/orphans and orphans-edited have whole passes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from orca_operator import names
from orca_operator.actions import Apply, ApplyAutoscaler
from orca_operator.adoption import adopt_orphans, is_orphan, is_own
from orca_operator.conditions import find_condition
from orca_operator.manifests.context import Owner
from orca_operator.master_client import MasterClient
from orca_operator.metrics import Metrics
from orca_operator.observe import Observed, label, name_of
from orca_operator.plan import plan
from orca_operator.reconcile import Reconciler
from orca_operator.validation import InvalidSpecError
from support.api_server import Api
from support.orcadeployments import IMAGES, MINIMAL, UID, context, merged, view

DEMO = Owner("demo", "default", UID)
OPTIONAL = {"podDisruptionBudget": {"enabled": True}, "monitoring": {"enabled": True}, "replicas": 2}
FORMER = {"kind": names.KIND, "name": "demo", "uid": "x", "controller": True}
OF_REVISION = {**names.labels("demo"), names.REVISION_LABEL: "gone"}


def child(kind: str, name: str, labels: dict[str, str], *owners: dict[str, Any]) -> dict[str, Any]:
    return {"kind": kind, "metadata": {"name": name, "labels": labels, "uid": "u", "ownerReferences": list(owners)}}


@pytest.mark.parametrize("backend", ["hpa", "keda"])
def test_each_object_of_a_plan_is_adopted_without_its_owner(backend):
    issued = {"mode": "certManager", "issuerRef": {"name": "ours"}}
    autoscaling = {"backend": backend, "maxReplicas": 4}
    spec = merged(MINIMAL, tls=issued, autoscaling=autoscaling, **OPTIONAL)
    made = [
        action.manifest
        for action in plan(context(spec), view(Observed()))
        if isinstance(action, Apply | ApplyAutoscaler)
    ]
    assert len({manifest["kind"] for manifest in made}) == 11
    for manifest in made:
        assert not is_orphan(manifest, "demo")
        orphan = {**manifest, "metadata": {**manifest["metadata"], "ownerReferences": []}}
        assert is_orphan(orphan, "demo"), manifest["kind"]
        assert not is_orphan(orphan, "another")


@pytest.mark.parametrize(
    ("kind", "name", "labels"),
    [
        ("Service", "public", names.labels("demo")),  # kubectl expose service demo --name public
        ("Service", "demo-gone-master", OF_REVISION),  # kubectl expose deployment demo-gone-master
        ("ConfigMap", "demo-gone-boot-copy", OF_REVISION),
        ("HorizontalPodAutoscaler", "keda-hpa-demo", names.labels("demo")),
        ("PodDisruptionBudget", "demo", {names.DEPLOYMENT_LABEL: "demo"}),
        ("Pod", "demo", names.labels("demo")),
        ("Pod", "demo-gone-p0-0", names.worker_labels("demo", "gone", 0)),
    ],
)
def test_objects_of_others_are_not_adopted(kind, name, labels):
    assert not is_orphan(child(kind, name, labels), "demo")


def test_an_object_of_another_owner_is_not_adopted():
    owner = {"kind": "HelmRelease", "uid": "x", "controller": True}
    assert not is_orphan(child("ConfigMap", "demo-gone-boot", OF_REVISION, owner), "demo")
    assert is_orphan(child("ConfigMap", "demo-gone-boot", OF_REVISION, {**owner, "controller": False}), "demo")


def orphans(*kinds: str) -> tuple[Api, tuple[dict[str, Any], ...]]:
    """Return an API server with orphans of some kinds."""
    api = Api(MINIMAL)
    for action in plan(context(merged(MINIMAL, **OPTIONAL)), view(Observed())):
        if isinstance(action, Apply) and action.manifest["kind"] in kinds:
            manifest = action.manifest
            api.put({**manifest, "metadata": {**manifest["metadata"], "ownerReferences": []}})
    return api, tuple(api.objects.values())


def owners(children: tuple[Any, ...]) -> list[list[dict[str, Any]]]:
    return [found["metadata"]["ownerReferences"] for found in children]


def test_objects_of_others_are_no_children():
    """No rule counts, changes or deletes them, whatever labels they have."""
    uids = {"uid": "x", "controller": True}
    monitored = {"kind": "ScaledObject", **uids}
    own = child("Pod", "demo-gone-p0-0", names.worker_labels("demo", "gone", 0), {"kind": "StatefulSet", **uids})
    former = child("Service", "demo", names.labels("demo"), {"kind": names.KIND, **uids})
    foreign = (
        child("ConfigMap", "copied", OF_REVISION),
        child("Deployment", "copied", OF_REVISION),
        child("Pod", "debug-0", names.selector("demo", names.WORKER)),
        child("HorizontalPodAutoscaler", "keda-hpa-demo", names.labels("demo"), monitored),
    )
    api = Api(MINIMAL)
    assert adopt_orphans(api, (own, *foreign, former), DEMO, set()) == ((own, former), [])  # type: ignore[arg-type]


HELM = {"meta.helm.sh/release-name": "demo", "meta.helm.sh/release-namespace": "default"}
NOT_OURS = "not ORCA's: choose another name, or remove the Service"


@pytest.mark.parametrize(
    ("labels", "annotations", "owners", "whose"),
    [
        (names.labels("demo"), {}, [{"kind": "Application", "uid": "x"}], "the Application a's: choose another name"),
        (names.labels("d"), {}, [{"kind": names.KIND, "uid": "x"}], "the OrcaDeployment a's: choose another name"),
        (
            {names.NAME_LABEL: names.OPERATOR_APP, names.MANAGED_BY_LABEL: "Helm"},
            HELM,
            [],
            "the operator's own: choose another name than its Helm release's",
        ),
        ({}, HELM, [], "the Helm release demo's: choose another name"),
        ({}, {}, [], NOT_OURS),
        ({names.DEPLOYMENT_LABEL: "demo"}, {}, [], NOT_OURS),
        ({names.DEPLOYMENT_LABEL: "demo", names.MANAGED_BY_LABEL: "Helm"}, {}, [], NOT_OURS),
    ],
    ids=["a controller's", "a rival's", "the operator's", "a release's", "a user's", "with the label", "of a chart"],
)
def test_an_object_of_others_is_neither_written_nor_deleted(labels, annotations, owners, whose):
    theirs = child("Service", "demo", labels, *({"name": "a", "controller": True, **each} for each in owners))
    theirs["metadata"]["annotations"] = annotations
    with pytest.raises(InvalidSpecError) as refusal:
        is_own(theirs, DEMO)
    assert str(refusal.value) == f"metadata.name: a Service named demo exists and is {whose}"


def test_an_object_of_an_earlier_deployment_may_be_deleted():
    assert not is_own(child("Service", "demo", names.labels("demo"), FORMER), DEMO)


@pytest.mark.parametrize("kind", ["ServiceAccount", "Service", "PodDisruptionBudget", "PodMonitor"])
def test_an_object_of_the_operators_own_release_stays_and_is_named(kind):
    """An OrcaDeployment with the name of the Helm release, in the namespace of the operator."""

    async def run() -> None:
        api = Api(merged(MINIMAL, tls={"mode": "off"}, **OPTIONAL))
        labels = {names.NAME_LABEL: names.OPERATOR_APP, names.INSTANCE_LABEL: "demo", names.MANAGED_BY_LABEL: "Helm"}
        api.put({**child(kind, "demo", labels), "spec": {"theirs": True}})
        theirs = api.objects[kind, "demo"]
        reconciler = api.reconciler = Reconciler(api, IMAGES, MasterClient(), Metrics())  # type: ignore[arg-type]
        await reconciler.run_pass(("default", "demo"))
        await reconciler.run_pass(("default", "demo"))
        assert api.objects[kind, "demo"] is theirs
        assert api.resource is not None
        condition = find_condition(api.resource["status"], "FullyApplied")
        assert f"a {kind} named demo exists and is the operator's own" in condition["message"]
        ends = kind in ("ServiceAccount", "Service")  # no pod needs the others
        assert condition["reason"] == ("InvalidSpec" if ends else "NotApplied")
        assert ("Deployment" in api.kinds()) != ends
        await reconciler.close()

    asyncio.run(asyncio.wait_for(run(), 60))


def test_an_orphan_keeps_its_other_owners_and_its_content():
    api, (budget,) = orphans("PodDisruptionBudget")
    other = {"kind": "Application", "name": "a", "uid": "x"}
    api.put({**budget, "metadata": {**budget["metadata"], "ownerReferences": [other]}})
    (adopted,), failures = adopt_orphans(api, tuple(api.objects.values()), DEMO, set())  # type: ignore[arg-type]
    assert (owners((adopted,)), failures) == ([[other, DEMO.reference]], [])
    assert adopted["spec"] == budget["spec"]
    assert label(adopted, names.DEPLOYMENT_LABEL) == "demo"


def test_a_refused_adoption_is_named_and_holds_no_other_up():
    api, children = orphans("PodDisruptionBudget", "PodMonitor")
    api.refusals = {"patch PodMonitor": (403, "denied by a webhook")}
    adopted, failures = adopt_orphans(api, children, DEMO, set())  # type: ignore[arg-type]
    assert sorted(map(len, owners(adopted))) == [0, 1]
    assert failures == ["PodMonitor demo is not adopted: denied by a webhook"]


def test_an_orphan_that_has_changed_meanwhile_is_left_to_the_next_pass():
    api, children = orphans("PodDisruptionBudget")
    api.put(children[0])
    assert adopt_orphans(api, children, DEMO, set()) == (children, [])  # type: ignore[arg-type]


def test_an_object_that_has_had_this_owner_is_restored_by_its_write():
    """Its repairs become rarer if another client takes the owner away each time."""
    api, children = orphans("PodDisruptionBudget")
    known = {("PodDisruptionBudget", name_of(children[0]))}
    assert adopt_orphans(api, children, DEMO, known) == (children, [])  # type: ignore[arg-type]
    assert api.calls == []


@pytest.mark.parametrize("successor", [True, False])
def test_a_deployment_that_is_deleted_adopts_no_orphan(successor):
    """The garbage collector takes the owner from the children before the OrcaDeployment is gone."""
    api, children = orphans("PodDisruptionBudget")
    assert api.resource is not None
    changed = {"uid": "another"} if successor else {"deletionTimestamp": "2026-01-01T00:00:00Z"}
    api.resource = {**api.resource, "metadata": {**api.resource["metadata"], **changed}}
    assert adopt_orphans(api, children, DEMO, set()) == (children, [])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("edit", "kind", "name"),
    [
        ({"podDisruptionBudget": {"enabled": False}}, "PodDisruptionBudget", "demo"),
        ({"monitoring": {"enabled": False}}, "PodMonitor", "demo"),
        ({"networkPolicy": {"enabled": False}}, "NetworkPolicy", "demo-worker"),
    ],
)
def test_an_object_that_loses_its_owner_and_its_purpose_is_deleted(edit, kind, name):
    """No write restores the owner of what the spec does not need."""

    async def run() -> None:
        api = Api(merged(MINIMAL, tls={"mode": "off"}, **OPTIONAL))
        reconciler = api.reconciler = Reconciler(api, IMAGES, MasterClient(), Metrics())  # type: ignore[arg-type]
        await reconciler.run_pass(("default", "demo"))
        written = api.objects[kind, name]
        api.put({**written, "metadata": {**written["metadata"], "ownerReferences": []}})
        resource = api.resource
        assert resource is not None
        api.resource = {**resource, "spec": {**resource["spec"], **edit}}
        await reconciler.run_pass(("default", "demo"))
        assert (kind, name) not in api.objects
        assert api.condition("FullyApplied") == ("True", "Applied")
        await reconciler.close()

    asyncio.run(asyncio.wait_for(run(), 60))
