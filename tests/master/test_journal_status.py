"""The state of the journal in the metrics and in the report to the operator, on and after a failed write."""

from __future__ import annotations

import asyncio
import re
from types import SimpleNamespace
from typing import Any

import httpx
from orca_contract.state import EngineState, JournalState
from orca_master.endpoint.admin import create_admin_app
from orca_master.engine.config import EngineConfig
from orca_master.engine.snapshot import EngineSnapshot
from orca_master.journal.journal import Journal
from orca_master.journal.status import JournalStatus, no_journal, status_of
from orca_master.metrics.prometheus import Metrics


def test_a_journal_that_is_full_is_off(tmp_path):
    journal = Journal(tmp_path, "model", max_bytes=200)
    metrics = Metrics("demo")
    metrics.watch_journal(lambda: status_of(journal))
    try:
        assert status_of(journal) == JournalStatus(JournalState.ON, "", journal.num_bytes)
        assert gauges(metrics) == {"journal_on": 1.0, "journal_bytes": float(journal.num_bytes)}
        journal.resume(list(range(1000)))
        assert status_of(journal) == JournalStatus(
            JournalState.OFF, "its files would exceed 200 bytes", journal.num_bytes
        )
        assert gauges(metrics)["journal_on"] == 0.0
    finally:
        journal.close()


def test_a_master_without_a_journal():
    assert no_journal() == JournalStatus(JournalState.NONE, "", 0)


def test_the_report_follows_the_journal():
    """A report without a journal has no new field: operators of earlier versions read the same as before."""
    states = iter([
        no_journal(), JournalStatus(JournalState.ON, num_bytes=3), JournalStatus(JournalState.OFF, "No space left"),
    ])  # fmt: skip
    reports = asyncio.run(ask(lambda: next(states), 3))
    assert [report.get("journal") for report in reports] == [None, "on", "off"]
    assert [report.get("journalFailure") for report in reports] == [None, None, "No space left"]


async def ask(journal: Any, times: int) -> list[dict[str, Any]]:
    master = SimpleNamespace(snapshot=EngineSnapshot(EngineState.SERVING, "", None))
    engine: Any = SimpleNamespace(engine=master, config=EngineConfig(), draining=False, idle=True, idle_seconds=0.0)
    token: Any = SimpleNamespace(matches="token".__eq__)
    transport = httpx.ASGITransport(create_admin_app(engine, token, journal))
    headers = {"Authorization": "Bearer token"}
    async with httpx.AsyncClient(transport=transport, base_url="http://master", headers=headers) as client:
        return [(await client.get("/state")).json() for _ in range(times)]


def gauges(metrics: Metrics) -> dict[str, float]:
    found = re.findall(r"^orca:(journal_\w+){.*} (\S+)$", metrics.render().decode(), re.MULTILINE)
    return {name: float(value) for name, value in found}
