"""`Rule`: the Python form of a rule over fields of a spec."""

from __future__ import annotations

from orca_operator.api import Spec
from orca_operator.rule import Rule
from orca_operator.schema import spec_schema
from orca_operator.structural import admitted
from support.orcadeployments import MINIMAL


def test_a_rule_reads_the_name_and_the_spec():
    rule = Rule(None, "self.spec.replicas > 0", "replicas", "must be positive", lambda name, spec: spec.replicas > 0)
    spec = Spec.model_validate(admitted(MINIMAL, spec_schema()))
    assert rule.holds("demo", spec)
    assert not rule.holds("demo", spec.model_copy(update={"replicas": 0}))
