"""One row per cause: what a pod or a master shows, and the reason and words that come of it."""

from __future__ import annotations

import inspect
import re

import pytest
from orca_contract.reasons import DESCRIPTIONS, Reason
from orca_contract.state import PipelinePhase
from orca_operator import conditions, names, observe, status
from orca_operator import diagnose as diagnose_module
from orca_operator import plan as plan_module
from orca_operator.diagnose import SEVERITY, Diagnosis, diagnose, diagnose_pod, worst
from orca_operator.observe import Observed
from support.orcadeployments import MINIMAL, NOW, context, everything, pod, report, view

DEMO = context()


def container(**state) -> dict:
    return {"containerStatuses": [{"name": "worker", "image": "repo/image:1", "restartCount": 0, **state}]}


def waiting(reason: str, message: str = "") -> dict:
    return container(state={"waiting": {"reason": reason, "message": message}})


def crashed(code: int, reason: str = "Error", message: str = "", restarts: int = 5, running: bool = False) -> dict:
    state = {"running": {}} if running else {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s"}}
    last = {"terminated": {"exitCode": code, "reason": reason, "message": message}}
    return {
        "containerStatuses": [
            {"name": "worker", "image": "image", "restartCount": restarts, "state": state, "lastState": last}
        ]
    }


def unscheduled(message: str) -> dict:
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    return {"conditions": [condition], "containerStatuses": []}


def fetching(**state) -> dict:
    status = {"name": "fetch-model", "image": "image", "restartCount": 1, "state": {}, **state}
    return {"initContainerStatuses": [status], "containerStatuses": []}


FAILED_FETCH = {"terminated": {"exitCode": 1, "message": "log line\norca fetch: error: hf://a/b does not exist\n"}}

WORKER_ROWS = [
    (waiting("ErrImagePull", "not found"), Reason.IMAGE_PULL_FAILED, "repo/image:1: not found"),
    (waiting("ImagePullBackOff"), Reason.IMAGE_PULL_FAILED, "repo/image:1: ImagePullBackOff"),
    (waiting("InvalidImageName", "bad"), Reason.IMAGE_PULL_FAILED, "bad"),
    (waiting("ErrImageNeverPull", "absent"), Reason.IMAGE_PULL_FAILED, "absent"),
    (waiting("CreateContainerConfigError", 'secret "x" not found'), Reason.INVALID_SPEC, 'secret "x" not found'),
    (waiting("RunContainerError", "no such file"), Reason.WORKER_CRASH_LOOP, "no such file"),
    (waiting("ContainerCreating"), Reason.LOADING_WEIGHTS, "starts"),
    (
        unscheduled("0/1 nodes are available: 1 Insufficient nvidia.com/gpu."),
        Reason.INSUFFICIENT_GPU,
        "Insufficient nvidia.com/gpu",
    ),
    (unscheduled("0/1 nodes: 1 node(s) had taints"), Reason.POD_UNSCHEDULABLE, "had taints"),
    (crashed(1, message="first\nboom\n"), Reason.WORKER_CRASH_LOOP, "exit code 1: boom"),
    (crashed(1, message="boom", restarts=1, running=True), Reason.RECOVERING, "was restarted: exit code 1: boom"),
    (crashed(1, message="boom", restarts=3, running=True), Reason.WORKER_CRASH_LOOP, "boom"),
    (crashed(137, "OOMKilled"), Reason.WORKER_OOM_KILLED, "the limit is 64Mi"),
    (crashed(137, "OOMKilled", restarts=1, running=True), Reason.WORKER_OOM_KILLED, "the limit is 64Mi"),
    (crashed(0, "Completed"), Reason.WORKER_CRASH_LOOP, "exit code 0"),
    (fetching(state={"running": {}}), Reason.MODEL_DOWNLOADING, "downloads the model"),
    (fetching(state={"running": {}}, lastState=FAILED_FETCH), Reason.MODEL_DOWNLOADING, "downloads the model"),
    (fetching(state=FAILED_FETCH), Reason.MODEL_DOWNLOAD_FAILED, "exit code 1: orca fetch: error: hf://a/b does not"),
    (
        fetching(state={"waiting": {"reason": "CrashLoopBackOff"}}, lastState=FAILED_FETCH),
        Reason.MODEL_DOWNLOAD_FAILED,
        "does not exist",
    ),
    ({"phase": "Failed", "reason": "Evicted", "message": "low on memory"}, Reason.WORKER_CRASH_LOOP, "Evicted: low on"),
    ({"reason": "NodeLost"}, Reason.NODE_LOST, "is unreachable"),
    (
        {"conditions": [{"type": "Ready", "status": "False", "reason": "NodeStatusUnknown"}]},
        Reason.NODE_LOST,
        "is unreachable",
    ),
    ({}, Reason.LOADING_WEIGHTS, "loads its weights"),
]


@pytest.mark.parametrize(("status", "reason", "words"), WORKER_ROWS)
def test_worker_pods(status, reason, words):
    found = diagnose_pod(pod(DEMO, **status))
    assert found.reason is reason
    assert words in found.message
    assert found.message.startswith(f"{found.pod}: ")


@pytest.mark.parametrize(
    ("status", "reason", "words"),
    [
        (crashed(2, message="orca master: error: bad"), Reason.INVALID_SPEC, "exit code 2: orca master: error: bad"),
        (crashed(1, message="boom"), Reason.MASTER_CRASH_LOOP, "boom"),
        (crashed(137, "OOMKilled"), Reason.MASTER_CRASH_LOOP, "OOMKilled"),
        (waiting("ImagePullBackOff", "gone"), Reason.IMAGE_PULL_FAILED, "gone"),
        ({}, Reason.LOADING_WEIGHTS, "waits for its workers"),
    ],
)
def test_master_pods(status, reason, words):
    found = diagnose_pod(pod(DEMO, names.MASTER, **status))
    assert found.reason is reason
    assert words in found.message


SIDECAR = {"name": "proxy", "restartPolicy": "Always", "resources": {"limits": {"memory": "1Mi"}}}


def with_sidecar(role: str, sidecar: dict, **status) -> dict:
    """Return a pod with a sidecar of the user, which has this status."""
    shown = {"name": "proxy", "image": "proxy:1", "restartCount": 5, **sidecar}
    made = pod(DEMO, role, **{"initContainerStatuses": [shown], **status})
    made["spec"]["initContainers"] = [SIDECAR]
    return made


def test_a_running_sidecar_hides_no_cause():
    running = {"state": {"running": {}}, "started": True}
    found = diagnose_pod(with_sidecar(names.WORKER, running, **crashed(1, message="boom")))
    assert (found.reason, "boom" in found.message) == (Reason.WORKER_CRASH_LOOP, True)
    assert "loads its weights" in diagnose_pod(with_sidecar(names.WORKER, running)).message


@pytest.mark.parametrize(
    ("role", "ended", "reason", "words"),
    [
        (names.WORKER, {"exitCode": 1, "message": "boom"}, Reason.WORKER_CRASH_LOOP, "exit code 1: boom"),
        (
            names.WORKER,
            {"exitCode": 137, "reason": "OOMKilled"},
            Reason.WORKER_OOM_KILLED,
            "of memory: the limit is 1Mi",
        ),
        (names.MASTER, {"exitCode": 2, "message": "bad"}, Reason.MASTER_CRASH_LOOP, "exit code 2: bad"),
    ],
)
def test_the_cause_of_a_sidecar_names_it(role, ended, reason, words):
    state = {"waiting": {"reason": "CrashLoopBackOff"}}
    found = diagnose_pod(with_sidecar(role, {"state": state, "lastState": {"terminated": ended}}))
    assert found.reason is reason
    assert "container proxy " in found.message
    assert words in found.message


def test_a_ready_or_ending_pod_has_no_cause():
    assert diagnose_pod(pod(DEMO, ready=True)) is None
    ending = pod(DEMO, **crashed(1))
    ending["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert diagnose_pod(ending) is None


@pytest.mark.parametrize(
    "reason",
    [
        Reason.ENGINE_STALLED, Reason.COMMUNICATOR_ERROR, Reason.RENDEZVOUS_TIMEOUT, Reason.WORKER_OOM_KILLED,
        Reason.INVALID_SPEC, Reason.WORKER_CRASH_LOOP, Reason.DIFFERENT_WEIGHTS,
    ],
)  # fmt: skip
def test_what_the_master_says(reason):
    said = report(DEMO, PipelinePhase.RECOVERING, reason=reason.value, message="in its own words")
    found = diagnose(view(Observed((pod(DEMO, ready=True),), {DEMO.revision: said})), DEMO.revision)
    assert found.reason is reason
    assert "in its own words" in found.message


def test_a_reason_of_a_newer_master_is_no_crash():
    said = report(DEMO, PipelinePhase.RECOVERING, reason="SomethingNew", message="x")
    assert diagnose(view(Observed((), {DEMO.revision: said})), DEMO.revision).reason is Reason.RECOVERING


def test_a_master_that_waits_for_a_pod_which_is_not_there_is_no_cause():
    said = report(DEMO, PipelinePhase.RECOVERING, reason="RendezvousTimeout", message="x")
    observed = Observed((pod(DEMO, **waiting("ContainerCreating")),), {DEMO.revision: said})
    assert diagnose(view(observed), DEMO.revision).reason is Reason.LOADING_WEIGHTS


def test_the_worst_pod_is_named():
    fine, bad = pod(DEMO, partition=0), pod(DEMO, partition=1, **crashed(137, "OOMKilled"))
    found = diagnose(view(Observed((fine, bad), {})), DEMO.revision)
    assert (found.reason, found.pod) == (Reason.WORKER_OOM_KILLED, bad["metadata"]["name"])


def test_every_reason_is_documented_and_ranked():
    assert set(DESCRIPTIONS) == set(Reason)
    assert set(SEVERITY) == set(Reason) - {Reason.SERVING, Reason.SUSPENDED, Reason.SCALED_TO_ZERO}
    ranked = [Diagnosis(reason, "") for reason in SEVERITY]
    assert worst(list(reversed(ranked))).reason is Reason.INVALID_SPEC
    assert worst([]) is None


def test_a_view_has_a_cause_for_each_pod_that_does_not_do_its_work():
    """Plan and status of a pass read these; masters' reports of later in the pass change no diagnosis of a pod."""
    fine, loading, ending = pod(DEMO, ready=True), pod(DEMO, pipeline=1), pod(DEMO, pipeline=2)
    ending["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    seen = view(Observed((fine, loading, ending)))
    assert {name: cause.reason for name, cause in seen.diagnoses.items()} == {
        loading["metadata"]["name"]: Reason.LOADING_WEIGHTS
    }
    assert seen.now == NOW


@pytest.mark.parametrize(
    "module", [conditions, diagnose_module, observe, plan_module, status], ids=lambda m: m.__name__
)
def test_decisions_read_no_clock(module):
    """The time of a pass comes with its view, so that a pass can be repeated."""
    source = inspect.getsource(module)
    assert not re.search(
        r"\.(now|today|utcnow|monotonic|time|perf_counter)\(|^import time|from time", source, re.MULTILINE
    )


def test_a_master_that_rejects_the_token_is_named_only_for_its_revision():
    demo = context(MINIMAL)
    observed = Observed(everything(demo).children, unauthorized=frozenset({demo.revision}))
    assert diagnose(view(observed), demo.revision).reason is Reason.ADMIN_UNAUTHORIZED
    assert diagnose(view(observed), "123456").reason is Reason.LOADING_WEIGHTS


def test_a_ready_master_that_does_not_answer_the_operator_is_named():
    """Not while its pod starts."""
    demo = context(MINIMAL)
    error = "10.0.0.9:8082/state: no answer within 5 s"
    ready = everything(demo).children
    cause = diagnose(view(Observed(ready, unanswered={demo.revision: error})), demo.revision)
    assert cause.reason is Reason.MASTER_UNREACHABLE
    assert "NetworkPolicies" in cause.message
    assert error in cause.message
    (master,) = Observed(ready).pods(names.MASTER)
    master["status"]["conditions"] = []
    cause = diagnose(view(Observed(ready, unanswered={demo.revision: error})), demo.revision)
    assert cause.reason is Reason.LOADING_WEIGHTS
