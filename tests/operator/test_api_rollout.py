"""The strategy's defaults, percentages and bounds."""

from __future__ import annotations

import pytest
from orca_operator.api_rollout import Bounds, RolloutStrategy
from orca_operator.validation import InvalidSpecError, parse
from support.orcadeployments import MINIMAL, merged


@pytest.mark.parametrize(
    ("strategy", "replicas", "bounds"),
    [
        ({}, 3, Bounds(1, 0)),
        ({"maxSurge": 2, "maxUnavailable": 1}, 3, Bounds(2, 1)),
        ({"maxSurge": "25%"}, 5, Bounds(2, 0)),
        ({"maxSurge": "0%", "maxUnavailable": "50%"}, 5, Bounds(0, 2)),
        ({"maxSurge": 0, "maxUnavailable": "25%"}, 2, Bounds(0, 1)),
        ({"maxSurge": "100%", "maxUnavailable": "100%"}, 1, Bounds(1, 1)),
    ],
)
def test_bounds_round_as_those_of_deployments_do(strategy, replicas, bounds):
    parsed = parse("demo", merged(MINIMAL, rolloutStrategy=strategy)).rollout_strategy
    assert parsed.bounds(replicas) == bounds
    assert not parsed.recreates


@pytest.mark.parametrize(
    "strategy", [{"maxSurge": 0}, {"maxSurge": "0%"}, {"maxSurge": 0, "maxUnavailable": 0}, {"maxSurge": "5"},
                 {"maxSurge": -1}, {"maxUnavailable": "-1%"}, {"maxUnavailable": 1.5}, {"maxSurge": "1000%"}]
)  # fmt: skip
def test_values_that_replace_no_pipeline_are_rejected(strategy):
    with pytest.raises(InvalidSpecError, match=r"spec.rolloutStrategy.max(Surge|Unavailable)"):
        parse("demo", merged(MINIMAL, rolloutStrategy=strategy))


def test_only_the_values_of_the_old_schema_count_as_filled_in():
    filled = {"type": "Recreate", "maxUnavailable": 1, "maxSurge": 0}
    assert RolloutStrategy.model_validate(filled).filled_in_by_old_schema
    for changed in ({"type": "RollingUpdate"}, {"maxSurge": 1}, {"maxUnavailable": 2}):
        assert not RolloutStrategy.model_validate(filled | changed).filled_in_by_old_schema
    assert RolloutStrategy.model_validate(filled).recreates
