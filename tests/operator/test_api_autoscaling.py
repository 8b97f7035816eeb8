"""The values of `spec.autoscaling` that are in force."""

from __future__ import annotations

import pytest
from orca_operator.api_autoscaling import Autoscaling
from orca_operator.manifests.hpa import scaling_behavior
from orca_operator.validation import parse
from support.orcadeployments import MINIMAL, merged


@pytest.mark.parametrize(
    ("values", "minimum", "without_effect"),
    [
        ({}, 1, []),
        ({"minReplicas": 2, "maxReplicas": 3}, 2, []),
        ({"minReplicas": 0}, 1, []),
        ({"keda": {"idleReplicaCount": 0}}, 1, ["autoscaling.keda.idleReplicaCount: 0"]),
        (
            {"minReplicas": 0, "keda": {"idleReplicaCount": 0}},
            1,
            ["autoscaling.keda.idleReplicaCount: 0"],
        ),
        (
            {"minReplicas": 2, "maxReplicas": 3, "keda": {"idleReplicaCount": 1}},
            2,
            ["autoscaling.keda.idleReplicaCount: 1"],
        ),
    ],
)
def test_an_autoscaler_has_a_minimum_of_1_and_keda_no_idle_count(values, minimum, without_effect):
    autoscaling = Autoscaling.model_validate(values)
    assert autoscaling.effective_min_replicas == minimum
    assert autoscaling.not_implemented == without_effect


@pytest.mark.parametrize(("given", "in_force"), [(0, 0), (3600, 3600), (3601, 3600), (86400, 3600)])
def test_a_stored_delay_beyond_the_maximum_of_an_hpa_stays_valid(given, in_force):
    """Specs with up to 86400 were accepted while `autoscaling` had no effect; an upgrade must not make them invalid."""
    spec = parse("demo", merged(MINIMAL, autoscaling={"scaleDownDelaySeconds": given}))
    assert spec.autoscaling is not None
    assert scaling_behavior(spec.autoscaling)["scaleDown"]["stabilizationWindowSeconds"] == in_force
