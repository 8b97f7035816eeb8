"""The values of `spec.autoscaling` that are in force."""

from __future__ import annotations

import pytest
from orca_operator.api_autoscaling import Autoscaling


@pytest.mark.parametrize(
    ("values", "minimum", "without_effect"),
    [
        ({}, 1, []),
        ({"minReplicas": 2, "maxReplicas": 3}, 2, []),
        ({"minReplicas": 0}, 1, ["autoscaling.minReplicas: 0"]),
        ({"keda": {"idleReplicaCount": 0}}, 1, ["autoscaling.keda.idleReplicaCount: 0"]),
        (
            {"minReplicas": 0, "keda": {"idleReplicaCount": 0}},
            1,
            ["autoscaling.minReplicas: 0", "autoscaling.keda.idleReplicaCount: 0"],
        ),
        ({"minReplicas": 2, "maxReplicas": 3, "keda": {"idleReplicaCount": 1}}, 2, []),
    ],
)
def test_scaling_to_zero_is_not_implemented(values, minimum, without_effect):
    autoscaling = Autoscaling.model_validate(values)
    assert autoscaling.effective_min_replicas == minimum
    assert autoscaling.not_implemented == without_effect
