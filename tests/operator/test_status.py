"""The status of situations, and that nothing changes in it while nothing changes."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from orca_contract.message import VERSION
from orca_contract.reasons import Reason
from orca_contract.state import PipelinePhase
from orca_operator import conditions, names
from orca_operator.conditions import CONDITIONS, Situation, find_condition
from orca_operator.diagnose import LONGEST_MESSAGE, Diagnosis
from orca_operator.observe import Observed
from orca_operator.status import make_status, merge_patch, with_failure
from support.orcadeployments import MINIMAL, context, everything, merged, pod, report, view

NOW = datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC)


def status(found, observed, previous=None, now=NOW, problem="", skipped=(), generation=1) -> dict:
    refused = Diagnosis(Reason.INVALID_SPEC, problem) if problem else None
    situation = Situation(
        found.name, found.namespace, generation, None if problem else found.spec, None if problem else found.revision,
        view(observed, now), refused, skipped,
    )  # fmt: skip
    return make_status(situation, previous or {})


def reason(found: dict, kind: str = "Ready") -> tuple[str, str]:
    condition = find_condition(found, kind)
    return condition["status"], condition["reason"]


def test_serving():
    demo = context(merged(MINIMAL, parallelism={"pipelineParallelSize": 2, "tensorParallelSize": 4}, replicas=2))
    found = status(demo, everything(demo, pipelines=2))
    assert reason(found) == ("True", "Serving")
    assert [condition["type"] for condition in found["conditions"]] == list(CONDITIONS)
    expected = {
        "observedGeneration": 1, "replicas": 2, "readyReplicas": 2, "availableReplicas": 2, "updatedReplicas": 2,
        "currentRevision": demo.revision, "updateRevision": demo.revision, "topology": "tp4xpp2", "restarts": 0,
        "url": "http://demo.default.svc",
    }  # fmt: skip
    assert {key: found[key] for key in expected} == expected
    assert found["selector"] == names.scale_selector("demo")
    assert [pipeline["readyWorkers"] for pipeline in found["pipelines"]] == ["2/2", "2/2"]
    for kind in ("Available", "ModelReady", "WorkersScheduled", "PipelinesFormed", "MasterServing", "FullyApplied"):
        assert reason(found, kind)[0] == "True", kind
    for kind in ("Progressing", "Degraded", "Failed"):
        assert reason(found, kind)[0] == "False", kind


def test_an_unchanged_situation_gives_an_equal_status():
    demo = context()
    first = status(demo, everything(demo))
    assert status(demo, everything(demo), first, NOW + timedelta(hours=1)) == first


def test_transition_times_move_only_with_the_status():
    demo = context()
    before = status(demo, Observed((pod(demo),)))
    after = status(demo, everything(demo), before, NOW + timedelta(seconds=9))
    assert find_condition(after, "Ready")["lastTransitionTime"] == "2026-01-01T12:00:09Z"
    assert find_condition(after, "WorkersScheduled")["lastTransitionTime"] == "2026-01-01T12:00:00Z"


def test_one_of_two_pipelines_serves():
    demo = context(merged(MINIMAL, replicas=2))
    observed = everything(demo, pipelines=2)
    worker = "demo-x-p0-1.demo-control.default.svc:50051"
    failed = report(demo, PipelinePhase.RECOVERING, 2, reason=Reason.ENGINE_STALLED, worker=worker, message="silent")
    said = report(demo, pipelines=2)
    said = said.model_copy(update={"pipelines": [said.pipelines[0], failed.pipelines[1]]})
    found = status(demo, Observed(observed.children, {demo.revision: said}))
    assert reason(found) == ("False", "EngineStalled")
    assert reason(found, "Available")[0] == "True"
    assert reason(found, "Degraded") == ("True", "EngineStalled")
    assert found["availableReplicas"] == 1
    assert found["pipelines"][1]["lastFailure"] == {
        "time": "1970-01-01T00:00:00Z", "reason": "EngineStalled", "pod": "demo-x-p0-1", "message": "silent",
    }  # fmt: skip


def test_an_invalid_spec_leaves_what_serves_in_sight():
    demo = context()
    before = status(demo, everything(demo))
    found = status(demo, everything(demo), before, problem="spec.replicas: bad", generation=2)
    assert reason(found) == ("False", "InvalidSpec")
    assert find_condition(found, "Ready")["message"] == "spec.replicas: bad"
    assert reason(found, "Available")[0] == "True"
    assert reason(found, "Failed")[0] == "True"
    assert (found["currentRevision"], found["topology"]) == (demo.revision, "tp1xpp1")
    assert found["observedGeneration"] == 2


def test_suspended_and_scaled_to_nothing():
    for change in ({"suspend": True}, {"replicas": 0}):
        found = status(context(merged(MINIMAL, **change)), Observed())
        assert reason(found) == ("False", "Suspended")
        assert reason(found, "Failed")[0] == "False"


def test_a_new_revision_waits_for_the_old_one():
    old, new = context(), context(merged(MINIMAL, restart={"id": "1"}))
    before = status(old, everything(old))
    found = status(new, everything(old), before)
    assert reason(found) == ("False", "RollingUpdate")
    assert (found["currentRevision"], found["updateRevision"]) == (old.revision, new.revision)
    assert found["updatedReplicas"] == 0
    assert reason(found, "Available")[0] == "True"


def test_the_deadline_of_progress():
    demo = context(merged(MINIMAL, progressDeadlineSeconds=60, startupTimeoutSeconds=60))
    observed = Observed((pod(demo),))
    first = status(demo, observed)
    assert reason(first, "Progressing") == ("True", "LoadingWeights")
    in_time = status(demo, observed, first, NOW + timedelta(seconds=60))
    assert reason(in_time, "Progressing")[0] == "True"
    late = status(demo, observed, in_time, NOW + timedelta(seconds=61))
    assert reason(late) == ("False", "ProgressDeadlineExceeded")
    assert reason(late, "Progressing") == ("False", "ProgressDeadlineExceeded")
    assert reason(late, "Failed")[0] == "True"
    assert status(demo, observed, late, NOW + timedelta(seconds=70)) == late
    edited = status(demo, observed, late, NOW + timedelta(seconds=80), generation=2)
    assert reason(edited, "Progressing")[0] == "True", "a new spec has a new deadline"
    assert reason(status(demo, everything(demo), late, NOW + timedelta(seconds=90))) == ("True", "Serving")


def test_an_edit_has_a_deadline_of_its_own():
    """Also if the deployment was not ready when it was edited."""
    demo = context(merged(MINIMAL, progressDeadlineSeconds=60, startupTimeoutSeconds=60))
    observed = Observed((pod(demo),))
    first = status(demo, observed)
    edited = status(demo, observed, first, NOW + timedelta(seconds=55), generation=2)
    later = status(demo, observed, edited, NOW + timedelta(seconds=110), generation=2)
    assert reason(later, "Progressing") == ("True", "LoadingWeights")
    assert reason(status(demo, observed, later, NOW + timedelta(seconds=116), generation=2), "Failed")[0] == "True"


def test_a_report_that_was_missing_is_no_progress():
    demo = context(merged(MINIMAL, replicas=2, progressDeadlineSeconds=60, startupTimeoutSeconds=60))
    observed = everything(demo, 1)
    previous = status(demo, observed)
    for seconds, seen in ((30, Observed(observed.children)), (59, observed), (61, observed)):
        previous = status(demo, seen, previous, NOW + timedelta(seconds=seconds))
    assert reason(previous, "Failed")[0] == "True"


def test_a_pipeline_that_becomes_ready_is_progress():
    """A rollout replaces its pipelines one after another: the deadline is that of each."""
    demo = context(merged(MINIMAL, replicas=3, progressDeadlineSeconds=60, startupTimeoutSeconds=60))
    now, previous = NOW, {}
    for pipelines in (1, 2):
        observed = everything(demo, pipelines)
        for seconds in (0, 59):
            previous = status(demo, observed, previous, now + timedelta(seconds=seconds))
            assert reason(previous, "Progressing")[0] == "True"
        now += timedelta(seconds=59)
    assert f"{pipelines} of 3 pipelines serve" in find_condition(previous, "Ready")["message"]
    assert reason(status(demo, observed, previous, now + timedelta(seconds=2)), "Failed")[0] == "True"


def test_downloads_are_seen():
    demo = context({"model": {"uri": "hf://a/b"}})
    fetching = {
        "initContainerStatuses": [{"name": "fetch-model", "image": "i", "state": {"running": {}}}],
        "containerStatuses": [],
    }
    found = status(demo, Observed((pod(demo, **fetching),)))
    assert reason(found) == ("False", "ModelDownloading")
    assert reason(found, "ModelReady") == ("False", "ModelDownloading")


def test_what_is_not_acted_on_is_said(monkeypatch):
    monkeypatch.setattr(conditions, "fields_that_are_set", lambda spec, effect: ["model.later"])
    found = status(context(), Observed())
    assert reason(found, "FullyApplied") == ("False", "NotYetActive")
    message = find_condition(found, "FullyApplied")["message"]
    assert "not implemented in this version: spec.model.later" in message
    monkeypatch.undo()
    skipped = status(context(), Observed(), skipped=("policy/v1 PodDisruptionBudget",))
    assert reason(skipped, "FullyApplied") == ("False", "KindNotServed")


def test_no_empty_strings():
    def empty(value) -> bool:
        if isinstance(value, dict):
            return any(map(empty, value.values()))
        return any(map(empty, value)) if isinstance(value, list) else value == ""

    assert not empty(status(context(), Observed(), problem="x"))


def test_phases_of_a_master_that_rejects_the_token_are_kept_while_the_workers_are_ready():
    demo = context(MINIMAL)
    serving = everything(demo)
    before = status(demo, serving)
    locked_out = Observed(serving.children, unauthorized=frozenset({demo.revision}))
    kept = status(demo, locked_out, before)
    assert (reason(kept), reason(kept, "Available")[0]) == (("False", "AdminUnauthorized"), "True")
    assert kept["pipelines"] == before["pipelines"]
    lost = tuple(pod(demo, ready=False) if role(child) == names.WORKER else child for child in serving.children)
    found = status(demo, Observed(lost, unauthorized=frozenset({demo.revision})), kept)
    assert reason(found, "Available")[0] == "False"
    assert [pipeline["phase"] for pipeline in found["pipelines"]] == [PipelinePhase.PENDING]


def test_a_call_without_an_answer_changes_nothing_while_the_pods_are_ready():
    demo = context(MINIMAL)
    serving = everything(demo)
    before = status(demo, serving)
    assert {"scheduler", "recoveryPolicy"} <= before.keys()
    assert status(demo, Observed(serving.children), before) == before


def test_settings_of_another_revision_or_of_a_master_that_is_not_ready_are_not_kept():
    old, new = context(MINIMAL), context(merged(MINIMAL, restart={"id": "2"}))
    before = status(old, everything(old))
    starting = tuple(child for child in everything(old).children if role(child) != names.MASTER)
    for found, children in ((new, everything(new).children), (old, starting)):
        assert "scheduler" not in status(found, Observed(children), before)


def test_a_master_that_does_not_answer_for_some_time_is_not_ready_but_available():
    demo = context(MINIMAL)
    serving = everything(demo)
    silent = Observed(serving.children, unanswered={demo.revision: "timed out"})
    found = status(demo, silent, status(demo, serving))
    assert (reason(found), reason(found, "Available")[0]) == (("False", "MasterUnreachable"), "True")
    assert reason(found, "JournalReady") == ("False", "MasterUnreachable")


def test_an_edit_is_not_applied_before_the_master_has_reported():
    demo = context(MINIMAL)
    serving = everything(demo)
    found = status(demo, Observed(serving.children), status(demo, serving), generation=2)
    assert (reason(found), reason(found, "FullyApplied")) == (("True", "Serving"), ("False", "NotApplied"))
    assert find_condition(found, "FullyApplied")["observedGeneration"] == 2
    found = status(demo, serving, found, generation=2)
    assert reason(found, "FullyApplied") == ("True", "Applied")


def test_a_restarted_operator_keeps_an_unreachable_master_not_ready_until_it_knows_more():
    """The new operator has failed calls, but not yet for half a minute: nothing says that the master serves."""
    demo = context(merged(MINIMAL, progressDeadlineSeconds=60, startupTimeoutSeconds=60))
    serving = everything(demo)
    silent = Observed(serving.children, unanswered={demo.revision: "timed out"})
    before = status(demo, silent, status(demo, serving))
    before = status(demo, silent, before, NOW + timedelta(seconds=61))
    assert (reason(before), reason(before, "Failed")[0]) == (("False", "MasterUnreachable"), "True")
    restarted = status(demo, Observed(serving.children), before, NOW + timedelta(seconds=70))
    assert restarted == before
    answered = status(demo, serving, restarted, NOW + timedelta(seconds=75))
    assert (reason(answered), reason(answered, "Failed")[0]) == (("True", "Serving"), "False")


def test_without_a_report_no_pipeline_serves_whose_pods_are_not_ready():
    demo = context(MINIMAL)
    serving = everything(demo)
    for lost in (names.WORKER, names.MASTER):
        children = tuple(pod(demo, lost) if role(child) == lost else child for child in serving.children)
        found = status(demo, Observed(children), status(demo, serving))
        assert reason(found, "Available") == ("False", "NoPipelineServes")
        assert [pipeline["phase"] for pipeline in found["pipelines"]] == [PipelinePhase.PENDING]


def test_restarts_of_a_window_that_is_over_do_not_come_back_while_the_master_rejects_the_token():
    demo = context(MINIMAL)
    serving = everything(demo)
    before = status(demo, serving)
    before["pipelines"][0] |= {"restarts": 3, "restartsSince": "2026-01-01T10:00:00Z"}
    kept = status(demo, Observed(serving.children, unauthorized=frozenset({demo.revision})), before)
    assert "restarts" not in kept["pipelines"][0]


def test_a_cause_of_the_pods_is_more_severe_than_a_rejected_token():
    demo = context(MINIMAL)
    serving = everything(demo)
    killed = [{"name": "worker", "image": "i", "restartCount": 9, "state": {"waiting": {"reason": "CrashLoopBackOff"}}}]
    children = tuple(
        pod(demo, containerStatuses=killed) if role(child) == names.WORKER else child for child in serving.children
    )
    found = status(demo, Observed(children, unauthorized=frozenset({demo.revision})), status(demo, serving))
    assert reason(found) == ("False", "WorkerCrashLoop")


def role(child) -> str:
    return child["metadata"].get("labels", {}).get(names.ROLE_LABEL, "") if child["kind"] == "Pod" else ""


def test_the_settings_in_force_are_those_that_the_master_reports_not_those_of_the_spec():
    demo = context(merged(MINIMAL, scheduler={"maxBatchSize": 7}))
    slow = report(context(MINIMAL))
    slow = slow.model_copy(update={"in_force": slow.in_force.model_copy(update={"stall_timeout_seconds": 2.5})})
    for master, expected in (
        (slow, ({"maxBatchSize": 32, "maxQueueDepth": 4096, "tokenBudget": 2048, "maxExpectedWaitSeconds": 60,
                 "admission": "reserve", "policy": "fcfs"},
                {"stallTimeoutSeconds": "2.5", "recoveryTimeoutSeconds": 600})),
        (slow.known_to(3), ({"maxBatchSize": 32, "maxQueueDepth": 4096, "tokenBudget": 2048}, None)),
        (None, (None, None)),
    ):  # fmt: skip
        reports = {demo.revision: master} if master is not None else {}
        found = status(demo, replace(everything(demo), reports=reports))
        assert (found.get("scheduler"), found.get("recoveryPolicy")) == expected


def test_a_patch_removes_the_fields_that_are_gone_at_every_level():
    before = {"a": 1, "b": {"c": 1, "d": 2}, "e": {"f": 1}, "g": [1]}
    after = {"a": 1, "b": {"c": 3}, "g": [2], "h": {"i": 1}}
    patch = merge_patch(after, before)
    assert patch == {"a": 1, "b": {"c": 3, "d": None}, "e": None, "g": [2], "h": {"i": 1}}


def test_a_master_of_an_older_version_gets_timeouts_and_admission_at_its_next_start():
    demo = context()
    for version, says_so in ((3, True), (VERSION, False)):
        master = report(demo).model_copy(update={"contract_version": version}).known_to(version)
        found = status(demo, replace(everything(demo), reports={demo.revision: master}))
        applied = find_condition(found, "FullyApplied")
        assert (applied["status"], "recoveryPolicy" in applied["message"]) == ("True", says_so)


def test_a_failed_pass_changes_one_condition():
    demo = context()
    before = status(demo, everything(demo))
    found = with_failure(before, "StatefulSet a: failed calling webhook", 2, NOW + timedelta(seconds=5))
    changed = [condition for condition in found["conditions"] if condition not in before["conditions"]]
    assert [(each["type"], each["status"], each["message"]) for each in changed] == [
        ("FullyApplied", "False", "StatefulSet a: failed calling webhook")
    ]
    assert changed[0]["observedGeneration"] == 2
    assert {**found, "conditions": []} == {**before, "conditions": []}
    assert with_failure(found, changed[0]["message"], 2, NOW + timedelta(hours=1)) == found
    assert reason(status(demo, everything(demo), found), "FullyApplied") == ("True", "Applied")


def test_a_new_deployment_whose_first_passes_fail_is_not_ready():
    found = with_failure({}, "x" * 5000, 1, NOW)
    assert reason(found) == ("False", "LoadingWeights")
    assert len(find_condition(found, "Ready")["message"]) == LONGEST_MESSAGE
    demo = context()
    assert status(demo, everything(demo), found)["conditions"] == status(demo, everything(demo))["conditions"]
