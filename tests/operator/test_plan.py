"""Properties of plan, and the passes of a rollout, a scaling and a deletion by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from orca_operator import names
from orca_operator.observe import Observed, label
from orca_operator.plan import Apply, Delete, PutScheduler, PutTopology, plan
from support.orcadeployments import MINIMAL, context, everything, merged, pod, report, view


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
    assert all(isinstance(action, Apply) for action in actions)
    assert manifests(actions) == manifests(plan(found, view(Observed())))


@given(specs, specs)
def test_from_any_state_to_any_other(before, after):
    """After the old revision's pods are gone, one more pass leaves exactly what a fresh start would make."""
    old, new = context(before), context(after)
    observed = everything(old, 0 if before["suspend"] else before["replicas"])
    deleted = {
        (a.child["kind"], a.child["metadata"]["name"]) for a in plan(new, view(observed)) if isinstance(a, Delete)
    }
    if old.revision != new.revision:
        applied = manifests(plan(new, view(observed)))
        assert not {kind for kind, _ in applied} & {"StatefulSet", "Deployment"}, "the old revision ends first"
    remaining = [
        child
        for child in observed.children
        if (child["kind"], child["metadata"]["name"]) not in deleted
        and not (child["kind"] == "Pod" and label(child, names.REVISION_LABEL) != new.revision)
    ]
    final = plan(new, view(Observed(tuple(remaining))))
    wanted = manifests(plan(new, view(Observed())))
    assert {key for key in manifests(final) if key[0] != "ControllerRevision"} == {
        key for key in wanted if key[0] != "ControllerRevision"
    }
    assert not [action for action in final if isinstance(action, Delete)]


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
    settings = {"maxBatchSize": 7, "tokenBudget": 100, "maxQueueDepth": 9, "maxExpectedWaitSeconds": 30}
    three = context(merged(MINIMAL, replicas=3, scheduler=settings))
    assert one.revision == three.revision
    actions = plan(three, view(everything(one)))
    (topology,) = (action for action in actions if isinstance(action, PutTopology))
    assert len(topology.body.pipelines) == 3
    (knobs,) = (action for action in actions if isinstance(action, PutScheduler))
    assert knobs.body.wire() == settings
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
    found = context(MINIMAL)
    stray = pod(found, revision="abcdef")
    kinds = {kind for kind, _ in manifests(plan(found, view(Observed((stray,)))))}
    assert "StatefulSet" not in kinds
