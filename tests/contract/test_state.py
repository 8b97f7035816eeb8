"""The report of a master: what a reader of another version makes of it."""

from __future__ import annotations

import json

import pytest
from orca_contract.message import read
from orca_contract.state import EngineState, StateReport

REPORT = {
    "state": "serving", "failure": "", "draining": False, "idle": True, "running": 0, "waiting": 0, "pipelines": [],
    "topology": {"model": {"path": "m", "servedName": "m"}, "pipelines": [{"id": "a", "workers": ["w:1"]}]},
    "scheduler": {},
}  # fmt: skip


def encoded(value: object) -> bytes:
    return json.dumps(value).encode()


def test_a_state_of_a_newer_master_stays_text():
    for state in ("serving", "meditating"):
        report, _ = read(StateReport, encoded({**REPORT, "state": state}))
        assert report.state == state
        assert isinstance(report.state, EngineState) == (state == "serving")
        assert report.contract_version == 0


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("topology", {"model": {"path": "m", "servedName": "m", "dtype": "float4"}, "pipelines": []}),
        ("scheduler", {"maxBatchSize": 0}),
    ],
)
def test_a_report_with_values_that_this_version_refuses_is_read_without_them(part, value):
    """Else an operator that is rolled back would call a master lost that serves."""
    report, _ = read(StateReport, encoded({**REPORT, part: value}))
    assert getattr(report, part) is None
    assert report.state is EngineState.SERVING
