"""The conditions of an OrcaDeployment (metav1.Condition). Pure: the previous status and the time are arguments.

`Ready` summarizes the others; its reason is one of orca_contract.reasons. A condition keeps its lastTransitionTime
while its status stays the same. Only that of `Progressing`, from which the progress deadline counts, is also set by an
edit, and by each pipeline of the spec's revision that becomes ready: a rollout replaces them one after another.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from orca_contract.reasons import Reason

from orca_operator import names
from orca_operator.api import Spec
from orca_operator.diagnose import LONGEST_MESSAGE, NO_CAUSE, Diagnosis, View, diagnose, diagnose_silence, first_silence
from orca_operator.effects import Effect, fields_that_are_set
from orca_operator.journal_condition import journal_ready
from orca_operator.model_condition import model_ready
from orca_operator.observe import pod_condition
from orca_operator.overwritten import overwritten
from orca_operator.progress import count_ready, is_overdue, moves_on
from orca_operator.recovery import NO_RECOVERY, Recovery
from orca_operator.scaling import not_implemented, scaling_ready
from orca_operator.silence import earlier_cause, why_unknown
from orca_operator.sleep import CLOSED, desired_pipelines, scales_to_zero
from orca_operator.upgrade_notes import notes

CONDITIONS: Mapping[str, str] = {
    "Ready": "every desired pipeline serves, at the spec's revision; reason `ScaledToZero`: no request needs one",
    "Available": "at least one pipeline serves requests",
    "Progressing": "not ready yet, and within `progressDeadlineSeconds`",
    "Degraded": "requests are served, but the deployment does not match its spec",
    "Failed": "manual action is needed: the spec is invalid, the progress deadline is over, or a pipeline has exceeded "
    "`recoveryPolicy.maxRestarts` and does not serve",
    "ModelReady": "no pod is downloading the model, and no download has failed; with `hf://` and `s3://`, a worker of "
    "the spec's revision has downloaded it; reason `DifferentWeights`: workers have weights of different revisions",
    "WorkersScheduled": "every worker pod is scheduled on a node",
    "PipelinesFormed": "every desired pipeline serves",
    "MasterServing": "the engine master accepts requests",
    "JournalReady": "the master records accepted requests in its journal; reason `JournalOff`: the journal cannot be "
    "written, and serving goes on without it; `NoJournal`: the spec has none; `NotReported`: the master is older than "
    "this condition",
    "ScalingReady": "`replicas` and the scale subresource take effect; with `autoscaling`, the autoscaler works: "
    "otherwise reason and message are its own, or `KindNotServed`, `AutoscalerRejected`, `AutoscalerPending`",
    "TLSReady": "the pods of the serving revision use mutual TLS; reason `PlaintextRevision`: the revision was created "
    "before TLS was the default, and the next revision will use TLS; `Off`: `tls.mode` is off",
    "FullyApplied": "every field is implemented (else reason `NotYetActive`), the cluster serves every required kind "
    "(else `KindNotServed`), the API server does not fail the operator's calls, and the master has applied every "
    "change (else `NotApplied`)",
}
HEALTHY = (Reason.MODEL_DOWNLOADING, Reason.ROLLING_UPDATE, Reason.LOADING_WEIGHTS)
"""Reasons of pods that start as they should."""


@dataclass(frozen=True, slots=True)
class Situation:
    """The input of a status. `spec` and `revision` are None if the spec is invalid.

    `problem` tells why the spec is not carried out, None if it is;
    `autoscaler_refusal` tells why the autoscaler was not written ("" if it was);
    `recovery` has the restarts of the pipelines, and which of them are given up;
    `certificates` is the Secret with the certificate of the desired revision's master, "" for plaintext;
    `certificate_problems` maps the name of a master's Secret to the reason why its certificates cannot be used.
    """

    name: str
    namespace: str
    generation: int
    spec: Spec | None
    revision: str | None
    view: View
    problem: Diagnosis | None = None
    skipped: Sequence[str] = ()
    not_applied: Sequence[str] = ()
    certificates: str = ""
    certificate_problems: Mapping[str, str] = field(default_factory=dict)
    autoscaler_refusal: str = ""
    recovery: Recovery = NO_RECOVERY

    @property
    def desired(self) -> int:
        """Desired number of pipelines; 0 if the spec is invalid."""
        known = (self.revision or "", self.view.observed, self.recovery.given_up)
        return desired_pipelines(self.spec, *known) if self.spec else 0

    @property
    def is_asleep(self) -> bool:
        """Whether there are no pipelines because no request comes."""
        return bool(self.spec and scales_to_zero(self.spec) and not self.spec.suspend and not self.desired)


@dataclass(frozen=True, slots=True)
class Rollout:
    """Counts of pipelines, and the revision that served last.

    `desired`: now; `serving`: by revision; `ready`: those of the spec's revision whose pods are all ready.
    """

    desired: int
    serving: Mapping[str, int]
    current: str
    ready: int = 0

    @property
    def available(self) -> int:
        """Serving pipelines of all revisions."""
        return sum(self.serving.values())


def make_conditions(situation: Situation, rollout: Rollout, previous: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return all conditions; `previous` is the whole previous status."""
    now = situation.view.now
    states = _states(situation, _verdict(situation, rollout, previous), rollout, previous, now)
    before = {kind: find_condition(previous, kind) for kind in CONDITIONS}
    if states["Progressing"][0] and _moves_on(situation, rollout, previous):
        before["Progressing"] = {}
    return [make_condition(kind, *states[kind], situation.generation, before[kind], now) for kind in CONDITIONS]


def _verdict(situation: Situation, rollout: Rollout, previous: Mapping[str, Any]) -> Diagnosis:
    """Return the reason of `Ready`."""
    if situation.problem is not None:
        return situation.problem
    assert situation.spec is not None
    assert situation.revision is not None
    if not rollout.desired:
        return _without_pipelines(situation, previous)
    revision, existing = situation.revision, situation.view.observed.revisions()
    lacking = situation.certificate_problems.get(situation.certificates, "")
    if lacking and revision not in existing:
        return Diagnosis(Reason.CERTIFICATE_NOT_READY, lacking)
    serving = rollout.serving.get(revision, 0)
    earlier = earlier_cause(situation.view.observed, revision, find_condition(previous, "Ready"))
    if serving >= rollout.desired and diagnose_silence(situation.view.observed, revision) is None:
        return earlier or Diagnosis(Reason.SERVING, f"{serving} of {rollout.desired} pipelines serve")
    others = sorted(existing - {revision})
    cause = diagnose(situation.view, revision)
    if cause.reason in HEALTHY:
        # Without its report a rollout may wait for it: it is unknown which of its pipelines serve.
        cause = earlier or first_silence(situation.view.observed, others) or cause
    if serving and cause == NO_CAUSE:
        cause = Diagnosis(cause.reason, f"{serving} of {rollout.desired} pipelines serve")
    if situation.recovery.failure:
        cause = Diagnosis(Reason.RESTART_BUDGET_EXCEEDED, situation.recovery.failure[:LONGEST_MESSAGE])
    if cause is not earlier and others and (revision not in existing or rollout.available > serving):
        return _rolling(cause, revision, rollout.current if rollout.current in others else others[0])
    return cause


def _without_pipelines(situation: Situation, previous: Mapping[str, Any]) -> Diagnosis:
    assert situation.spec is not None
    revision, observed = situation.revision or "", situation.view.observed
    if not situation.is_asleep:
        return Diagnosis(Reason.SUSPENDED, "spec.suspend is set" if situation.spec.suspend else CLOSED)
    before = find_condition(previous, "Ready")
    was_asleep = before.get("reason") == Reason.SCALED_TO_ZERO
    known = revision in observed.reports or (was_asleep and diagnose_silence(observed, revision) is None)
    if not known or not observed.master_is_ready(revision):
        return earlier_cause(observed, revision, before) or diagnose(situation.view, revision)
    return Diagnosis(Reason.SCALED_TO_ZERO, "no request has come for scaleDownDelaySeconds: no pipeline runs")


def _rolling(cause: Diagnosis, revision: str, replaced: str) -> Diagnosis:
    """Return the reason of `Ready` while `revision` replaces another one, and does not serve as desired yet."""
    if cause.reason in HEALTHY:
        return Diagnosis(Reason.ROLLING_UPDATE, f"revision {revision} replaces {replaced}: {cause.message}", cause.pod)
    return Diagnosis(cause.reason, f"revision {revision}: {cause.message}; revision {replaced} is kept", cause.pod)


def _states(
    situation: Situation, verdict: Diagnosis, rollout: Rollout, previous: Mapping[str, Any], now: datetime
) -> dict[str, tuple[bool, str, str]]:
    """Return (status, reason, message) of every condition."""
    spec, observed = situation.spec, situation.view.observed
    desired, available = rollout.desired, rollout.available
    asleep = verdict.reason is Reason.SCALED_TO_ZERO
    ready = asleep or verdict.reason is Reason.SERVING
    resting = verdict.reason is Reason.SUSPENDED
    waiting = not ready and not resting and verdict.reason is not Reason.INVALID_SPEC
    overdue = (
        waiting
        and spec is not None
        and not _moves_on(situation, rollout, previous)
        and is_overdue(find_condition(previous, "Progressing"), spec.progress_deadline_seconds, now)
    )
    if overdue and verdict.reason in HEALTHY:
        verdict = Diagnosis(Reason.PROGRESS_DEADLINE_EXCEEDED, verdict.message)
    reason, message = verdict.reason.value, verdict.message
    given_up = verdict.reason is Reason.RESTART_BUDGET_EXCEEDED
    end = reason if given_up else Reason.PROGRESS_DEADLINE_EXCEEDED.value
    has_failed = given_up or overdue
    workers = observed.pods(names.WORKER)
    unscheduled = [pod for pod in workers if pod_condition(pod, "PodScheduled").get("status") != "True"]
    updated = observed.pods(names.WORKER, situation.revision)
    enough = len(updated) >= desired * (spec.parallelism.pipeline_parallel_size if spec else 1)
    scheduled = enough and not unscheduled
    serving = f"{available} of {desired} pipelines serve"
    master_ready = asleep or bool(rollout.serving)
    revision = rollout.current or situation.revision or ""
    return {
        "Ready": (ready, reason, message),
        "Available": (available > 0, reason if available else "NoPipelineServes", serving),
        "Progressing": (False, end, message) if has_failed else (waiting, reason if waiting else "Complete", message),
        "Degraded": (available > 0 and not ready and verdict.reason not in HEALTHY, reason, message),
        "Failed": (has_failed or verdict.reason is Reason.INVALID_SPEC, end if has_failed else reason, message),
        "ModelReady": _model_ready(situation, desired, reason),
        "WorkersScheduled": (scheduled, "Scheduled" if scheduled else reason, f"unscheduled pods: {len(unscheduled)}"),
        "PipelinesFormed": (desired <= available, reason, serving),
        "MasterServing": (master_ready, "Serving" if master_ready else reason, message),
        "JournalReady": journal_ready(observed, revision, find_condition(previous, "JournalReady"), reason, message),
        "ScalingReady": scaling_ready(
            situation.name, spec, observed, situation.skipped, situation.autoscaler_refusal, asleep
        ),
        "TLSReady": _tls_ready(situation, revision),
        "FullyApplied": _fully_applied(situation, find_condition(previous, "FullyApplied")),
    }


def _moves_on(situation: Situation, rollout: Rollout, previous: Mapping[str, Any]) -> bool:
    before = count_ready(previous.get("pipelines") or [], situation.revision)
    return moves_on(find_condition(previous, "Progressing"), situation.generation, rollout.ready, before)


def _not_carried_out(situation: Situation) -> tuple[bool, str, str]:
    """Return the state of a condition that cannot hold, because the spec is not carried out."""
    assert situation.problem is not None
    return False, situation.problem.reason.value, situation.problem.message


def _model_ready(situation: Situation, desired: int, reason: str) -> tuple[bool, str, str]:
    if situation.spec is None:
        return _not_carried_out(situation)
    return model_ready(situation.spec, situation.view, situation.revision or "", desired, reason)


def _tls_ready(situation: Situation, revision: str) -> tuple[bool, str, str]:
    """Return TLSReady from the pods, not from the spec: a revision keeps the pod templates of its start."""
    spec, secrets = situation.spec, situation.view.observed.certificate_secrets()
    if spec is None and revision not in secrets:
        return _not_carried_out(situation)
    secret = secrets.get(revision, situation.certificates)
    if lacking := situation.certificate_problems.get(secret):
        return False, Reason.CERTIFICATE_NOT_READY.value, lacking
    if secret:
        return True, "MutualTLS", f"revision {revision} uses mutual TLS with the certificates of Secret {secret}"
    if spec is not None and spec.tls.source == "off":
        return False, "Off", f"spec.tls.mode is off: revision {revision} uses plaintext"
    hint = "a new value of spec.restart.id replaces it by a revision with TLS"
    return False, "PlaintextRevision", f"revision {revision} was created without TLS and stays in plaintext; {hint}"


def _fully_applied(situation: Situation, before: Mapping[str, Any]) -> tuple[bool, str, str]:
    if situation.spec is None or situation.problem is not None:
        return _not_carried_out(situation)
    observed, revision = situation.view.observed, situation.revision or ""
    inactive = fields_that_are_set(situation.spec, Effect.NOT_YET) + not_implemented(situation.spec)
    fields = ", ".join(f"spec.{field}" for field in inactive)
    later = f"accepted, but not implemented in this version: {fields}" if inactive else ""
    unserved = f"this cluster does not serve: {', '.join(sorted(situation.skipped))}" if situation.skipped else ""
    silence = why_unknown(observed, revision, before, situation.generation)
    silence = silence[: LONGEST_MESSAGE // 2]  # Ready has all of it
    causes = [situation.autoscaler_refusal, situation.view.nodes.refusal, *overwritten(situation.name, situation.spec)]
    if lacking := [*filter(None, (unserved, silence, *situation.not_applied, *causes, later))]:
        reason = "KindNotServed" if unserved else "NotYetActive" if lacking == [later] else "NotApplied"
        return False, reason, "; ".join(lacking)[:LONGEST_MESSAGE]
    if observed.is_silent(revision):
        return before["status"] == "True", before["reason"], before["message"]
    sentences = notes(situation.spec, situation.namespace, situation.name, revision, observed)
    return True, "Applied", "; ".join(sentences)


def make_condition(
    kind: str, holds: bool, reason: str, message: str, generation: int, before: Mapping[str, Any], now: datetime
) -> dict[str, Any]:
    """Return a condition of a status; `before`: the same condition of the previous status, {} without it."""
    status = "True" if holds else "False"
    kept = before.get("lastTransitionTime") if before.get("status") == status else None
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": message,
        "lastTransitionTime": kept or rfc3339(now),
        "observedGeneration": generation,
    }


def find_condition(status: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    """Return a condition of a status, {} without it."""
    entries: Iterable[Mapping[str, Any]] = status.get("conditions", ())
    return next((entry for entry in entries if entry["type"] == kind), {})


def rfc3339(moment: datetime) -> str:
    """Return a time in the format of the Kubernetes API."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
