"""Which settings the workers' device excludes; tests/support/spec_table.py has the same in the API server's form."""

from __future__ import annotations

import pytest
from orca_operator.api import Spec
from orca_operator.device_rules import DEVICE_RULES
from orca_operator.schema import spec_schema
from orca_operator.structural import admitted
from support.orcadeployments import MINIMAL, merged

MODEL = MINIMAL["model"]


@pytest.mark.parametrize(
    ("changes", "broken"),
    [
        ({}, []),
        ({"communication": {"backend": "gloo"}, "worker": {"device": "cuda"}}, []),
        ({"worker": {"device": "cpu"}}, ["worker.device"]),
        (
            {
                "communication": {"backend": "gloo"},
                "worker": {"device": "cuda"},
                "parallelism": {"tensorParallelSize": 2},
            },
            ["parallelism.tensorParallelSize"],
        ),
        ({"communication": {"backend": "gloo"}, "model": {**MODEL, "dtype": "float16"}}, ["model.dtype"]),
        (
            {"model": {**MODEL, "quantization": "int8", "kvCacheDtype": "int8"}},
            ["model.quantization", "model.kvCacheDtype"],
        ),
        (
            {
                "communication": {"backend": "gloo"},
                "worker": {"device": "cuda"},
                "model": {**MODEL, "quantization": "int8", "kvCacheDtype": "int8"},
            },
            ["model.quantization", "model.kvCacheDtype"],
        ),
    ],
)
def test_broken_rules(changes, broken):
    spec = Spec.model_validate(admitted(merged(MINIMAL, **changes), spec_schema()))
    assert [rule.field for rule in DEVICE_RULES if not rule.holds("demo", spec)] == broken
