"""Properties of plan, and the passes of a rollout, a scaling and a deletion by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from orca_operator import names
from orca_operator.actions import Apply, ApplyAutoscaler, Check, Delete, PutScheduler, PutTopology, Scale
from orca_operator.observe import Observed, label
from orca_operator.plan import plan
from support.orcadeployments import MINIMAL, context, everything, live, merged, pod, report, view

OFF = {"mode": "off"}
KEPT = ("Service", "ServiceAccount", "NetworkPolicy", "PodDisruptionBudget", "ControllerRevision")
"""Kinds that are not part of a revision's engine."""


def manifests(actions) -> dict:
    return {(a.manifest["kind"], a.manifest["metadata"]["name"]): a.manifest for a in actions if isinstance(a, Apply)}


specs = st.builds(
    lambda shape, replicas, budget, policy, suspend: merged(
        MINIMAL, parallelism=shape, replicas=replicas, podDisruptionBudget={"enabled": budget},
        networkPolicy={"enabled": policy}, suspend=suspend,
    ),
    st.fixed_dictionaries({"pipelineParallelSize": st.integers(1, 4), "tensorParallelSize": st.sampled_from([1, 2])}),
    st.integers(0, 4), st.booleans(), st.booleans(), st.booleans(),
)  # fmt: skip


@given(specs)
def test_a_steady_state_is_left_alone(spec):
    """What is in place is planned again as it is: no deletion, no call to the master."""
    found = context(spec)
    pipelines = 0 if spec["suspend"] else spec["replicas"]
    observed = everything(found, pipelines) if pipelines else Observed(everything(found, 0).children[:-1])
    actions = plan(found, view(observed))
    assert not [action for action in actions if not isinstance(action, Apply)]
    assert manifests(actions) == manifests(plan(found, view(Observed())))


RECREATE = {"rolloutStrategy": {"type": "Recreate"}}


@given(specs, specs)
def test_from_any_state_to_any_other(before, after):
    """Recreate: after the old revision's pods are gone, one more pass leaves exactly what a fresh start would make."""
    old, new = context(merged(before, **RECREATE)), context(merged(after, **RECREATE))
    observed = everything(old, 0 if before["suspend"] else before["replicas"])
    if old.revision != new.revision:
        first = plan(new, view(observed))
        assert not {kind for kind, _ in manifests(first)} & {"StatefulSet", "Deployment"}, "the old revision ends first"
        assert {action.child["kind"] for action in first if isinstance(action, Delete)} >= {"Deployment"}
        without_master = [child for child in observed.children if label(child, names.ROLE_LABEL) != names.MASTER]
        second = plan(new, view(Observed(tuple(without_master))))
        deleted = {(a.child["kind"], a.child["metadata"]["name"]) for a in second if isinstance(a, Delete)}
        assert {kind for kind, _ in deleted} >= {"StatefulSet"}
        observed = Observed(
            tuple(
                child
                for child in without_master
                if (child["kind"], child["metadata"]["name"]) not in deleted and child["kind"] != "Pod"
            )
        )
    remaining = [child for child in observed.children if child["kind"] in KEPT or old.revision == new.revision]
    final = plan(new, view(Observed(tuple(remaining))))
    wanted = manifests(plan(new, view(Observed())))
    assert {key for key in manifests(final) if key[0] != "ControllerRevision"} == {
        key for key in wanted if key[0] != "ControllerRevision"
    }


def test_scaling_down_the_master_lets_go_first():
    two, one = context(merged(MINIMAL, replicas=2)), context(merged(MINIMAL, replicas=1))
    assert two.revision == one.revision
    observed = everything(two, pipelines=2)
    actions = plan(one, view(observed))
    (put,) = (action for action in actions if isinstance(action, PutTopology))
    assert [pipeline.id for pipeline in put.body.pipelines] == [f"{one.revision}-0"]
    (stateful_set,) = (m for (kind, _), m in manifests(actions).items() if kind == "StatefulSet")
    assert stateful_set["spec"]["replicas"] == 2, "its pods stay until the master has answered"
    answered = Observed(observed.children, {one.revision: report(one, pipelines=1)})
    (stateful_set,) = (m for (kind, _), m in manifests(plan(one, view(answered))).items() if kind == "StatefulSet")
    assert stateful_set["spec"]["replicas"] == 1


@pytest.mark.parametrize(("address", "replicas"), [("10.0.0.1", 2), ("", 1)], ids=["running", "not running"])
def test_scaling_down_waits_for_a_master_that_runs_and_does_not_answer(address, replicas):
    two, one = context(merged(MINIMAL, replicas=2)), context(merged(MINIMAL, replicas=1))
    observed = everything(two, pipelines=2)
    children = [child for child in observed.children if label(child, names.ROLE_LABEL) != names.MASTER]
    children.append(pod(two, names.MASTER, ready=True, podIP=address))
    actions = plan(one, view(Observed(tuple(children))))
    (stateful_set,) = (m for (kind, _), m in manifests(actions).items() if kind == "StatefulSet")
    assert stateful_set["spec"]["replicas"] == replicas
    assert not [action for action in actions if isinstance(action, PutTopology)]


def test_scaling_up_and_live_knobs():
    one = context(MINIMAL)
    settings = {
        "maxBatchSize": 7, "tokenBudget": 100, "maxQueueDepth": 9, "maxExpectedWaitSeconds": 30, "admission": "paged",
        "policy": "priority",
    }  # fmt: skip
    timeouts = {"stallTimeoutSeconds": 30, "recoveryTimeoutSeconds": 90}
    three = context(merged(MINIMAL, replicas=3, scheduler=settings, recoveryPolicy=timeouts))
    assert one.revision == three.revision
    actions = plan(three, view(everything(one)))
    (topology,) = (action for action in actions if isinstance(action, PutTopology))
    assert len(topology.body.pipelines) == 3
    (knobs,) = (action for action in actions if isinstance(action, PutScheduler))
    assert knobs.body.wire() == settings | timeouts
    (stateful_set,) = (m for (kind, _), m in manifests(actions).items() if kind == "StatefulSet")
    assert stateful_set["spec"]["replicas"] == 3


def test_the_stored_rendering_wins_over_a_new_one():
    """An operator of another version, here with another default image, restarts no pod."""
    old = context(MINIMAL)
    observed = everything(old)
    newer = replace(old, images=replace(old.images, worker="orca-worker:next", master="orca-master:next"))
    assert manifests(plan(newer, view(observed))) == manifests(plan(old, view(observed)))
    assert "orca-worker:next" in str(manifests(plan(newer, view(Observed()))))


def test_a_pod_of_another_revision_holds_the_new_one_back():
    stray = pod(context(MINIMAL), revision="abcdef")
    for strategy, waits in ((RECREATE, True), ({}, False)):
        found = context(merged(MINIMAL, **strategy))
        kinds = {kind for kind, _ in manifests(plan(found, view(Observed((stray,)))))}
        assert ("StatefulSet" not in kinds) == waits


def ended(actions) -> set[str]:
    return {action.child["kind"] for action in actions if isinstance(action, Delete)}


def test_a_new_revision_comes_up_beside_the_old_one():
    old, new = context(MINIMAL), context(merged(MINIMAL, parallelism={"pipelineParallelSize": 2}))
    observed = everything(old)
    actions = plan(new, view(observed), serving_revision=old.revision)
    checks = [(a.manifest["kind"], a.manifest["metadata"]["name"]) for a in actions if isinstance(a, Check)]
    for kind in ("StatefulSet", "Deployment"):  # an API server checks the pods of a Deployment only
        assert (kind, names.partition("demo", new.revision, 1)) in checks
    assert [type(action) for action in actions[: len(checks)]] == [Check] * len(checks), "before anything changes"
    made = manifests(actions)
    for partition in range(2):
        assert made["StatefulSet", names.partition("demo", new.revision, partition)]["spec"]["replicas"] == 1
    assert not ended(actions)


def test_the_old_revision_drains_and_goes_when_the_new_one_serves():
    old, new = context(MINIMAL), context(merged(MINIMAL, restart={"id": "2"}))
    both = Observed(
        everything(old).children + everything(new).children,
        {old.revision: report(old), new.revision: report(new)},
    )
    actions = plan(new, view(both), serving_revision=old.revision)
    (master,) = (action.child for action in actions if isinstance(action, Delete))
    assert master["metadata"]["name"] == names.master("demo", old.revision)
    drained = Observed(
        tuple(
            child
            for child in both.children
            if not (label(child, names.REVISION_LABEL) == old.revision and label(child, names.ROLE_LABEL) == "master"
                    and child["kind"] in ("Pod", "Deployment"))
        ),
        {new.revision: report(new)},
    )  # fmt: skip
    assert ended(plan(new, view(drained))) == {"StatefulSet", "ConfigMap"}


def test_an_old_revision_shrinks_step_by_step():
    """Three pipelines: one new one serves, so one of the old ones goes, first from the topology, then its pods."""
    old, new = context(merged(MINIMAL, replicas=3)), context(merged(MINIMAL, replicas=3, restart={"id": "2"}))
    children = everything(old, 3).children + everything(new, 1).children
    both = Observed(children, {old.revision: report(old, pipelines=3), new.revision: report(new, pipelines=1)})
    for child in both.children:
        if child["kind"] == "StatefulSet" and label(child, names.REVISION_LABEL) == new.revision:
            child["spec"]["replicas"] = 1
    actions = plan(new, view(both), serving_revision=old.revision)
    (put,) = (a for a in actions if isinstance(a, PutTopology) and a.revision == old.revision)
    assert [pipeline.id for pipeline in put.body.pipelines] == [f"{old.revision}-{index}" for index in (0, 1)]
    assert not [action for action in actions if isinstance(action, Scale)], (
        "its pods stay until the master has answered"
    )
    boot = manifests(actions)["ConfigMap", names.boot("demo", old.revision)]
    assert f"{old.revision}-1" in boot["data"]["topology.json"]
    assert f'"{old.revision}-2"' not in boot["data"]["topology.json"]
    later = Observed(children, {**both.reports, old.revision: report(old, pipelines=2)})
    actions = plan(new, view(later), serving_revision=old.revision)
    assert [(a.child["metadata"]["name"], a.replicas) for a in actions if isinstance(a, Scale)] == [
        (names.partition("demo", old.revision, 0), 2)
    ]
    assert not ended(actions)


def test_an_edit_back_keeps_what_serves_and_deletes_what_never_did():
    old, new = context(MINIMAL), context(merged(MINIMAL, worker={"image": "wrong:tag"}))
    broken = [live(a.manifest) for a in plan(new, view(Observed())) if isinstance(a, Apply)]
    broken = [child for child in broken if label(child, names.REVISION_LABEL) == new.revision]
    observed = Observed((*everything(old).children, *broken, pod(new)), {old.revision: report(old)})
    actions = plan(old, view(observed), serving_revision=old.revision)
    assert ended(actions) == {"Deployment", "StatefulSet", "ConfigMap"}
    assert {label(a.child, names.REVISION_LABEL) for a in actions if isinstance(a, Delete)} == {new.revision}
    assert not [action for action in actions if isinstance(action, Scale | PutTopology)]


def test_a_return_to_an_older_revision_takes_todays_images():
    """Its ControllerRevision is immutable: it is deleted and made anew, without a dry run, which would be rejected."""
    old = context(MINIMAL)
    stored = [child for child in everything(old).children if child["kind"] == "ControllerRevision"]
    owner = {"kind": names.KIND, "controller": True, "uid": "u"}
    stored[0]["metadata"]["ownerReferences"] = [owner]
    newer = replace(old, images=replace(old.images, worker="orca-worker:next"))
    actions = plan(newer, view(Observed(tuple(stored))))
    order = [type(a) for a in actions if "ControllerRevision" in (getattr(a, "manifest", None) or a.child)["kind"]]
    assert order == [Delete, Apply]
    made = manifests(actions)
    assert "orca-worker:next" in str(made["ControllerRevision", names.revision("demo", old.revision)])
    assert "orca-worker:next" in str(made["StatefulSet", names.partition("demo", old.revision, 0)])


def test_a_new_revision_without_a_place_has_no_workloads_yet():
    """A Deployment of 0 pods counts as available, as if the revision had served."""
    surgeless = {"rolloutStrategy": {"maxSurge": 0, "maxUnavailable": 1}}
    old = context(MINIMAL)
    new = context(merged(MINIMAL, restart={"id": "2"}, **surgeless))
    actions = plan(new, view(everything(old)), serving_revision=old.revision)
    assert not {kind for kind, _ in manifests(actions)} & {"Deployment", "StatefulSet"}
    assert ended(actions) == {"Deployment"}
    suspended = context(merged(MINIMAL, suspend=True, **surgeless))
    assert "Deployment" in {kind for kind, _ in manifests(plan(suspended, view(Observed())))}


def test_certificates_stay_while_a_revision_uses_them():
    old, new = (context(merged(MINIMAL, tls=tls)) for tls in ({"mode": "certManager", "issuerRef": {"name": "a"}}, OFF))
    observed = everything(old)
    assert observed.of_kind("Certificate")
    assert "Certificate" not in ended(plan(new, view(observed), serving_revision=old.revision))
    left = Observed(tuple(observed.of_kind("Certificate")))
    assert "Certificate" in ended(plan(new, view(left)))


# -- the autoscaler ----------------------------------------------------------------------------------------------------

HPA, SCALED_OBJECT = "HorizontalPodAutoscaler", "ScaledObject"


def autoscaled(backend: str, **changes):
    return context(merged(MINIMAL, autoscaling={"backend": backend, "maxReplicas": 4}, **changes))


def with_autoscaler(deployment, replicas: int = 1) -> Observed:
    observed = everything(deployment, replicas)
    (manifest,) = (a.manifest for a in plan(deployment, view(Observed())) if isinstance(a, ApplyAutoscaler))
    return replace(observed, children=(*observed.children, live(manifest)))


def of_autoscalers(actions) -> list[tuple[type, str]]:
    """Return the kinds of actions on autoscalers and of the autoscalers, in order."""
    objects = [(type(a), getattr(a, "manifest", None) or getattr(a, "child", {})) for a in actions]
    return [(of, found["kind"]) for of, found in objects if found.get("kind") in (HPA, SCALED_OBJECT)]


@pytest.mark.parametrize(("backend", "kind"), [("hpa", HPA), ("keda", SCALED_OBJECT)])
def test_an_autoscaler_is_applied_at_the_end_and_cannot_stop_a_revision(backend, kind):
    actions = plan(autoscaled(backend), view(Observed()))
    assert of_autoscalers(actions) == [(ApplyAutoscaler, kind)], "no dry run"
    assert isinstance(actions[-1], ApplyAutoscaler)
    again = plan(autoscaled(backend), view(with_autoscaler(autoscaled(backend))))
    assert of_autoscalers(again) == [(ApplyAutoscaler, kind)]


@pytest.mark.parametrize(("before", "after"), [("hpa", "keda"), ("keda", "hpa")])
@pytest.mark.parametrize("edit", [{}, {"restart": {"id": "1"}}], ids=["only the backend", "a new revision, too"])
def test_the_other_backends_autoscaler_goes_first(before, after, edit):
    kinds = {"hpa": HPA, "keda": SCALED_OBJECT}
    observed = with_autoscaler(autoscaled(before))
    actions = plan(autoscaled(after, **edit), view(observed))
    assert of_autoscalers(actions) == [(Delete, kinds[before])], "no write of the new one"
    gone = [child for child in observed.children if child["kind"] != kinds[before]]
    later = plan(autoscaled(after, **edit), view(replace(observed, children=tuple(gone))))
    assert of_autoscalers(later) == [(ApplyAutoscaler, kinds[after])]


@pytest.mark.parametrize("backend", ["hpa", "keda"])
def test_without_autoscaling_the_autoscaler_is_deleted(backend):
    observed = with_autoscaler(autoscaled(backend))
    ((action, _),) = of_autoscalers(plan(context(), view(observed)))
    assert action is Delete


def test_the_hpa_that_keda_creates_is_left_alone():
    """KEDA copies the labels of the ScaledObject to its HPA."""
    observed = with_autoscaler(autoscaled("keda"))
    owner = {"apiVersion": "keda.sh/v1alpha1", "kind": SCALED_OBJECT, "name": "demo", "uid": "x", "controller": True}
    metadata = {
        "name": "keda-hpa-demo", "labels": names.labels("demo"), "ownerReferences": [owner], "uid": "y",
    }  # fmt: skip
    observed = replace(observed, children=(*observed.children, {"kind": HPA, "metadata": metadata}))
    assert of_autoscalers(plan(autoscaled("keda"), view(observed))) == [(ApplyAutoscaler, SCALED_OBJECT)]
    assert of_autoscalers(plan(context(), view(observed))) == [(Delete, SCALED_OBJECT)]


def test_objects_of_users_with_the_labels_are_left_alone():
    """`kubectl expose` copies the labels of a Service, or those of a revision from its Deployment or pod."""
    of_revision = {**names.labels("demo"), names.REVISION_LABEL: "gone"}

    def child(kind: str, name: str, labels: dict[str, str]) -> dict[str, Any]:
        return {"kind": kind, "metadata": {"name": name, "labels": labels, "uid": name}}

    children = (
        child("Service", "public", names.labels("demo")),
        child("Service", "public-too", of_revision),
        child("Service", "demo-gone-master", of_revision),
        child("ConfigMap", "copied", of_revision),
    )
    assert not ended(plan(context(), view(Observed(children))))


@pytest.mark.parametrize("kind", ["Pod", "Deployment", "StatefulSet"])
def test_recreate_waits_for_no_object_of_another_with_the_label(kind):
    """Such a pod may run for ever, and the status would not say why nothing starts."""
    recreated = context(merged(MINIMAL, **RECREATE))
    foreign = {"kind": kind, "metadata": {"name": "debug", "labels": names.labels("demo"), "uid": "x"}, "spec": {}}
    actions = plan(recreated, view(Observed((foreign,))))
    applied = {action.manifest["kind"] for action in actions if isinstance(action, Apply)}
    assert {"Deployment", "StatefulSet"} <= applied


@pytest.mark.parametrize("replicas", [1, 3, 9])
def test_replicas_are_the_autoscalers(replicas):
    """The number of pods follows `replicas` alone, also beyond the bounds of the autoscaler."""
    found = autoscaled("hpa", replicas=replicas)
    (stateful_set,) = (m for (kind, _), m in manifests(plan(found, view(Observed()))).items() if kind == "StatefulSet")
    assert stateful_set["spec"]["replicas"] == replicas


@pytest.mark.parametrize("strategy", [{}, {"type": "Recreate"}, {"maxSurge": 0, "maxUnavailable": 1}])
@pytest.mark.parametrize(("replicas", "ends"), [(1, False), (0, True)])
def test_a_new_revision_without_certificates_ends_no_old_one_that_is_to_serve(strategy, replicas, ends):
    old = context(MINIMAL)
    new = context(merged(MINIMAL, restart={"id": "2"}, rolloutStrategy=strategy, replicas=replicas))
    actions = plan(new, view(everything(old)), has_certificates=False, serving_revision=old.revision)
    assert not {kind for kind, _ in manifests(actions)} & {"StatefulSet", "Deployment"}
    deleted = [action.child["metadata"]["name"] for action in actions if isinstance(action, Delete)]
    assert (names.master(old.name, old.revision) in deleted) == ends
