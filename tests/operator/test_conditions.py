"""Single conditions; test_status.py has whole statuses, scenarios/ their course."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from orca_operator import names
from orca_operator.conditions import CONDITIONS, Rollout, Situation, find_condition, make_conditions, rfc3339
from orca_operator.diagnose import LONGEST_MESSAGE
from orca_operator.lost_nodes import Nodes
from orca_operator.observe import Observed
from support.orcadeployments import MINIMAL, context, everything, merged, pod, view

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


def conditions(situation: Situation, wanted: int = 1, available: int = 1, previous=None) -> dict:
    """Conditions by type."""
    revision = situation.revision or ""
    rollout = Rollout(wanted, {revision: available} if available else {}, revision if available else "")
    made = make_conditions(situation, rollout, previous or {})
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
        ({"skipped": ["a"], "not_applied": ["one"]}, "KindNotServed", "this cluster does not serve: a; one"),
    ],
)
def test_what_is_not_applied_is_named(changes, reason, words):
    entry = conditions(situation(**changes))["FullyApplied"]
    assert (entry["status"], entry["reason"], entry["message"]) == ("False", reason, words)
    assert f"`{reason}`" in CONDITIONS["FullyApplied"]


@pytest.mark.parametrize(
    ("changes", "reason", "words"),
    [
        ({}, "NotYetActive", ""),
        ({"not_applied": ["one", "two"]}, "NotApplied", "one; two; "),
        ({"skipped": ["a"]}, "KindNotServed", "this cluster does not serve: a; "),
    ],
)
def test_a_field_without_effect_hides_no_other_cause(changes, reason, words):
    autoscaling = {"backend": "keda", "minReplicas": 0, "keda": {"idleReplicaCount": 1}}
    idle = situation(spec=context(merged(MINIMAL, autoscaling=autoscaling)).spec, **changes)
    later = (
        "accepted, but not implemented in this version: spec.autoscaling.keda.idleReplicaCount: 1 "
        "(spec.autoscaling.minReplicas: 0 scales to zero)"
    )
    entry = conditions(idle)["FullyApplied"]
    assert (entry["status"], entry["reason"], entry["message"]) == ("False", reason, words + later)


@pytest.mark.parametrize(
    ("changes", "reason", "words"),
    [
        ({}, "NotApplied", ""),
        ({"not_applied": ["one"]}, "NotApplied", "; one"),
        ({"skipped": ["a"]}, "KindNotServed", ""),
    ],
)
def test_what_is_not_applied_does_not_hide_that_the_master_is_silent(changes, reason, words):
    observed = everything(context(merged(MINIMAL, progressDeadlineSeconds=2000)))
    known = situation(observed, **changes)
    silent = replace(observed, reports={}, unanswered={known.revision or "": "timed out"})
    entry = conditions(situation(silent, **changes))["FullyApplied"]
    assert (entry["status"], entry["reason"]) == ("False", reason)
    assert "the operator has no report from it: timed out" in entry["message"]
    assert entry["message"].endswith(words)
    assert entry["message"].startswith("this cluster does not serve: a; " if "skipped" in changes else "the master's")


def test_a_long_error_of_the_master_does_not_hide_what_is_not_applied():
    """As that of a report of another version. Ready has all of it, and nothing else has what is not written."""
    observed = everything(context(merged(MINIMAL, progressDeadlineSeconds=2000)))
    revision = situation(observed).revision or ""
    silent = replace(observed, reports={}, unanswered={revision: "not a state report: " + "field " * 200})
    entry = conditions(situation(silent, not_applied=["Service demo"]))["FullyApplied"]
    assert "Service demo" in entry["message"]
    assert "the operator has no report from it" in entry["message"]


def test_the_first_seconds_of_a_silence_change_nothing():
    observed = replace(everything(context(merged(MINIMAL, progressDeadlineSeconds=2000))), reports={})
    made = conditions(situation(), previous={})["FullyApplied"]
    assert conditions(situation(observed), previous={"conditions": [made]})["FullyApplied"] == made


def test_a_missing_right_to_read_nodes_is_named():
    demo = context(MINIMAL)
    seen = replace(view(everything(demo)), nodes=Nodes(refusal="no right"))
    entry = conditions(situation(view=seen))["FullyApplied"]
    assert (entry["status"], entry["reason"], entry["message"]) == ("False", "NotApplied", "no right")


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


def test_values_that_the_operator_replaces_are_not_applied():
    demo = context(merged(MINIMAL, worker={"resources": {"limits": {"nvidia.com/gpu": 4}}}))
    entry = conditions(situation(everything(demo), spec=demo.spec))["FullyApplied"]
    assert (entry["status"], entry["reason"]) == ("False", "NotApplied")
    assert entry["message"].startswith("spec.worker.resources: nvidia.com/gpu is 1 and not 4")


def test_a_longer_drain_is_applied_with_a_note():
    started = everything(context(merged(MINIMAL, drainTimeoutSeconds=30)))
    entry = conditions(situation(started, spec=context(merged(MINIMAL, drainTimeoutSeconds=600)).spec))["FullyApplied"]
    assert entry["status"] == "True"
    assert "drainTimeoutSeconds: 30 is in force; 600 begins with the next revision" in entry["message"]


def test_times_are_written_in_utc():
    eastern = NOW.astimezone(UTC) + timedelta(microseconds=5)
    assert rfc3339(eastern) == "2026-01-01T12:00:00Z"
    assert datetime.fromisoformat(rfc3339(eastern)) == NOW


def test_a_condition_that_is_absent_is_empty():
    assert find_condition({}, "Ready") == {}
    assert find_condition({"conditions": [{"type": "Ready", "status": "True"}]}, "Ready")["status"] == "True"


def rolling(old_serves: bool, cause: str = "", locked_out: bool = False, **changes) -> dict:
    """Conditions while a revision replaces `demo`'s, by default with pods that start."""
    old, new = context(MINIMAL), context(merged(MINIMAL, restart={"id": "2"}))
    waiting = {"state": {"waiting": {"reason": cause}}, "image": "wrong:tag", "name": "worker"}
    started = pod(new, **({"containerStatuses": [waiting]} if cause else {}))
    observed = everything(old)
    found = Observed((*observed.children, *everything(new).children[:-2], started), observed.reports)
    found = replace(found, unauthorized=frozenset({old.revision} if locked_out else ()))
    made = situation(found, spec=new.spec, revision=new.revision, **changes)
    rollout = Rollout(1, {old.revision: 1} if old_serves else {}, old.revision)
    return {entry["type"]: entry for entry in make_conditions(made, rollout, {})}


def test_a_healthy_rollout_is_not_degraded():
    entries = rolling(old_serves=True)
    assert (entries["Ready"]["status"], entries["Ready"]["reason"]) == ("False", "RollingUpdate")
    assert entries["Degraded"]["status"] == "False"
    assert entries["Available"]["status"] == "True"


@pytest.mark.parametrize(("cause", "reason"), [("", "AdminUnauthorized"), ("ErrImagePull", "ImagePullFailed")])
def test_a_rollout_that_waits_for_an_old_master_which_rejects_the_token_says_so(cause, reason):
    ready = rolling(old_serves=True, cause=cause, locked_out=True)["Ready"]
    assert ready["reason"] == reason
    if not cause:
        assert f"revision {context(MINIMAL).revision}: the master rejects the operator's token" in ready["message"]


def test_a_rollout_that_cannot_proceed_names_the_cause_and_the_revision_that_serves():
    entries = rolling(old_serves=True, cause="ErrImagePull")
    kept = context(MINIMAL).revision
    assert entries["Ready"]["reason"] == "ImagePullFailed"
    assert "wrong:tag" in entries["Ready"]["message"]
    assert entries["Ready"]["message"].endswith(f"; revision {kept} is kept")
    assert entries["Degraded"]["status"] == entries["Available"]["status"] == "True"


def test_values_that_an_older_crd_filled_in_are_named_with_the_command_that_removes_them():
    filled = {"type": "Recreate", "maxUnavailable": 1, "maxSurge": 0}
    for strategy, named in ((filled, True), ({"type": "Recreate"}, False), ({}, False)):
        demo = context(merged(MINIMAL, rolloutStrategy=strategy))
        entry = conditions(situation(everything(demo), spec=demo.spec))["FullyApplied"]
        assert entry["status"] == "True"
        assert ("kubectl -n default patch orca demo --type=merge" in entry["message"]) == named
