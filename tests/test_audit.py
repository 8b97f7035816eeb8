"""What `make audit` makes of pip-audit's report: packages that nobody looked up are never counted as sound."""

from __future__ import annotations

from pathlib import Path

import audit_images
import pytest
from audit_images import Findings, findings

SOUND = {"name": "a", "version": "1", "vulns": []}
SKIPPED = {"name": "b", "skip_reason": "not found"}
VULNERABLE = {"name": "c", "version": "2", "vulns": [{"id": "CVE-1", "fix_versions": ["3"]}]}


def test_findings():
    found = findings({"dependencies": [SOUND, SKIPPED, VULNERABLE]})
    assert found.num_packages == 3
    assert found.unreached == ["b: not found"]
    assert found.vulnerable == ["c 2: CVE-1 (fixed in: 3)"]


@pytest.mark.parametrize(
    ("report", "code", "words"),
    [
        ([SOUND], 0, "1 packages, no known vulnerability"),
        ([SOUND, SKIPPED], 3, "not reached: 1 look-ups"),
        ([SKIPPED, VULNERABLE], 1, "CVE-1"),
    ],
)
def test_exit_codes(report, code, words, monkeypatch, capsys):
    monkeypatch.setattr(audit_images, "audit", lambda _: findings({"dependencies": report}))
    assert audit_images.main([Path("x.txt")]) == code
    assert words in capsys.readouterr().out


def test_a_report_that_does_not_come_is_not_reached(monkeypatch, capsys):
    monkeypatch.setattr(audit_images, "audit", lambda _: Findings(unreached=["no network"]))
    assert audit_images.main([Path("x.txt"), Path("y.txt")]) == 3
    assert capsys.readouterr().out.count("not reached") == 2
