"""Single conditions; test_status.py has whole statuses, scenarios/ their course."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from orca_operator import names
from orca_operator.conditions import CONDITIONS, Situation, find_condition, make_conditions, rfc3339
from orca_operator.diagnose import LONGEST_MESSAGE
from orca_operator.observe import Observed
from support.orcadeployments import MINIMAL, context, everything, merged, pod, view

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


def conditions(situation: Situation, wanted: int = 1, available: int = 1, previous=None) -> dict:
    """Conditions by type."""
    made = make_conditions(situation, wanted, available, available > 0, situation.revision or "", previous or {})
    assert [entry["type"] for entry in made] == list(CONDITIONS)
    return {entry["type"]: entry for entry in made}


def situation(observed: Observed | None = None, now: datetime = NOW, **changes) -> Situation:
    demo = context(merged(MINIMAL, progressDeadlineSeconds=2000))
    values = {"spec": demo.spec, "revision": demo.revision, "view": view(observed or everything(demo), now), **changes}
    return Situation("demo", "default", 7, **values)


def test_every_condition_speaks_of_the_generation():
    assert {entry["observedGeneration"] for entry in conditions(situation()).values()} == {7}


@pytest.mark.parametrize(
    ("changes", "reason", "words"),
    [
        ({"skipped": ["b", "a"]}, "KindNotServed", "this cluster does not serve: a, b"),
        ({"not_applied": ["one", "two"]}, "NotApplied", "one; two"),
        ({"not_applied": ["x" * 5000]}, "NotApplied", "x" * 800),
        ({"skipped": ["a"], "not_applied": ["one"]}, "KindNotServed", "this cluster does not serve: a"),
    ],
)
def test_what_is_not_applied_is_named(changes, reason, words):
    entry = conditions(situation(**changes))["FullyApplied"]
    assert (entry["status"], entry["reason"], entry["message"]) == ("False", reason, words)


def test_a_worker_without_a_node_is_counted():
    demo = context(MINIMAL)
    waiting = pod(demo, conditions=[{"type": "PodScheduled", "status": "False", "message": "no room"}])
    entry = conditions(situation(Observed((waiting,))), available=0)["WorkersScheduled"]
    assert (entry["status"], entry["message"]) == ("False", "unscheduled pods: 1")


@pytest.mark.parametrize(("seconds", "status"), [(2000, "True"), (2001, "False")])
def test_the_deadline_counts_from_the_begin_of_progressing(seconds, status):
    empty = situation(Observed())
    before = {"conditions": list(conditions(empty, available=0).values())}
    late = situation(Observed(), NOW + timedelta(seconds=seconds))
    later = conditions(late, available=0, previous=before)
    assert later["Progressing"]["status"] == status
    assert (later["Failed"]["status"] == "True") == (status == "False")


def test_a_certificate_that_lacks_is_the_reason_only_before_the_revision_runs():
    own = names.own_secret("demo", names.MASTER)
    lacking = {"certificates": own, "certificate_problems": {own: "does not exist"}}
    assert conditions(situation(Observed(), **lacking), available=0)["Ready"]["reason"] == "CertificateNotReady"
    assert conditions(situation(**lacking))["Ready"]["reason"] == "Serving"


@pytest.mark.parametrize(
    ("reported", "expected"),
    [
        ({"journal": "on"}, ("True", "Recording", "the master records accepted requests")),
        (
            {"journal": "off", "journal_failure": "No space left on device"},
            ("False", "JournalOff", "the journal is off until the next start of the master: No space left on device"),
        ),
        ({"journal": "off", "journal_failure": "x" * 5000}, ("False", "JournalOff", None)),
        (
            {"journal": "none"},
            ("False", "NoJournal", "spec.master.journal.enabled is false, or spec.master.apiProcesses is set"),
        ),
        ({"journal": "none", "contract_version": 2}, ("False", "NotReported", None)),
        ({"journal": "in stone"}, ("False", "NotReported", None)),
    ],
)
def test_the_journal_is_a_condition_of_its_own(reported, expected):
    """Ready does not depend on the journal: a master without a journal serves."""
    demo = context(merged(MINIMAL, progressDeadlineSeconds=2000))
    observed = everything(demo)
    said = observed.reports[demo.revision].model_copy(update=reported)
    entries = conditions(situation(Observed(observed.children, {demo.revision: said})))
    status, reason, message = expected
    assert (entries["JournalReady"]["status"], entries["JournalReady"]["reason"]) == (status, reason)
    assert message is None or entries["JournalReady"]["message"] == message
    assert len(entries["JournalReady"]["message"]) <= LONGEST_MESSAGE
    assert (entries["Ready"]["status"], entries["Ready"]["reason"]) == ("True", "Serving")


def test_without_a_report_the_journal_is_as_ready_as_the_master():
    entries = conditions(situation(Observed(everything(context(MINIMAL)).children)), available=0)
    assert entries["JournalReady"]["status"] == "False"
    assert entries["JournalReady"]["reason"] == entries["Ready"]["reason"] != "Serving"


def test_times_are_written_in_utc():
    eastern = NOW.astimezone(UTC) + timedelta(microseconds=5)
    assert rfc3339(eastern) == "2026-01-01T12:00:00Z"
    assert datetime.fromisoformat(rfc3339(eastern)) == NOW


def test_a_condition_that_is_absent_is_empty():
    assert find_condition({}, "Ready") == {}
    assert find_condition({"conditions": [{"type": "Ready", "status": "True"}]}, "Ready")["status"] == "True"
