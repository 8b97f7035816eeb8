"""`worker.placement`: the affinity of the pods of a pipeline."""

from __future__ import annotations

from typing import Any

import kubernetes_validate
import pytest
from orca_operator import names
from orca_operator.manifests.master import master_deployment
from orca_operator.manifests.workers import worker_stateful_sets
from support.orcadeployments import MINIMAL, context, merged

HOST = "kubernetes.io/hostname"
REQUIRED, PREFERRED = (f"{word}DuringSchedulingIgnoredDuringExecution" for word in ("required", "preferred"))


def affinities(**settings: Any) -> list[dict[str, Any] | None]:
    """Return the affinity of each StatefulSet; check the objects against the schemas of Kubernetes."""
    stateful_sets = worker_stateful_sets(context(spec(**settings)))
    for stateful_set in stateful_sets:
        kubernetes_validate.validate(stateful_set, "1.36", strict=True)
    return [stateful_set["spec"]["template"]["spec"].get("affinity") for stateful_set in stateful_sets]


def spec(**settings: Any) -> dict[str, Any]:
    return merged(MINIMAL, parallelism={"pipelineParallelSize": 2}, worker=settings)


def term(key: str = HOST, **settings: Any) -> dict[str, Any]:
    revision = context(spec(**settings)).revision
    selector = names.selector("demo", names.WORKER) | {names.REVISION_LABEL: revision}
    return {
        "labelSelector": {"matchLabels": selector},
        "matchLabelKeys": ["apps.kubernetes.io/pod-index"],
        "topologyKey": key,
    }


@pytest.mark.parametrize(("policy", "kind"), [("colocate", "podAffinity"), ("spread", "podAntiAffinity")])
def test_every_pod_of_a_pipeline_has_the_same_term(policy, kind):
    placement = {"policy": policy}
    assert affinities(placement=placement) == [{kind: {REQUIRED: [term(placement=placement)]}}] * 2


def test_a_preference_has_a_weight():
    placement = {"policy": "colocate", "topologyKey": "rack", "whenUnsatisfiable": "ScheduleAnyway"}
    preferred = [{"weight": 100, "podAffinityTerm": term("rack", placement=placement)}]
    assert affinities(placement=placement) == [{"podAffinity": {PREFERRED: preferred}}] * 2


def test_the_users_own_terms_stay():
    mine = {"labelSelector": {"matchLabels": {"app": "cache"}}, "topologyKey": "zone"}
    affinity = {"nodeAffinity": {}, "podAffinity": {REQUIRED: [mine], PREFERRED: []}}
    settings = {"placement": {"policy": "colocate"}, "affinity": affinity}
    both = {REQUIRED: [mine, term(**settings)], PREFERRED: []}
    assert affinities(**settings) == [{"nodeAffinity": {}, "podAffinity": both}] * 2


def test_no_placement_and_the_master_are_without():
    assert affinities() == [None, None]
    master = master_deployment(context(spec(placement={"policy": "spread"})))
    assert "affinity" not in master["spec"]["template"]["spec"]
