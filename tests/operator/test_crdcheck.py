"""The checker itself: its absence is a failure where it is required, and it notices what it is there for."""

from __future__ import annotations

import pytest
from orca_operator.crd import crd
from support import crdcheck
from support.crdcheck import judge, resource
from support.orcadeployments import MINIMAL


def test_absence_skips_or_fails(monkeypatch, tmp_path):
    monkeypatch.setattr(crdcheck, "PROGRAM", tmp_path / "absent")
    monkeypatch.delenv(crdcheck.REQUIRE, raising=False)
    with pytest.raises(pytest.skip.Exception, match="absent"):
        judge(crd())
    monkeypatch.setenv(crdcheck.REQUIRE, "1")
    with pytest.raises(pytest.fail.Exception, match="absent"):
        judge(crd())


def test_a_default_that_breaks_a_rule_before_it_is_complete_is_noticed():
    broken = crd()
    broken["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["scheduler"][
        "default"
    ] = {}
    (verdict,) = judge(broken)
    assert not verdict.accepted
    assert "no such key: tokenBudget" in verdict.errors[0]


def test_a_resource_that_is_refused_does_not_refuse_the_others():
    verdicts = judge(crd(), [resource("demo", {}), resource("demo", MINIMAL)])
    assert [verdict.accepted for verdict in verdicts] == [True, False, True]
    assert verdicts[2].defaulted["spec"]["scheduler"]["tokenBudget"] == 2048
