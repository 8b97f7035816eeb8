"""Outdated revisions: what they hold, which of them is dispensable, and the actions that shrink and end them. Pure.

An outdated revision keeps its objects as they are. Its pipelines are removed, the highest first: from the topology of
its master, whose requests move to the other pipelines, then the pods. At its end the master drains before the workers
are deleted.
"""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from typing import Any

from orca_contract.state import PipelinePhase
from orca_contract.topology import Topology

from orca_operator import names
from orca_operator.actions import Action, Apply, Delete, PutTopology, Scale
from orca_operator.diagnose import View
from orca_operator.manifests.context import Context
from orca_operator.observe import Object, Observed, is_ending, is_ready, label, name_of
from orca_operator.rollout import Engine
from orca_operator.sleep import sleeps

WORKLOADS = ("Deployment", "StatefulSet")
END_SECONDS = 30
"""After the grace period of a terminating master pod, its workers are deleted too: its node may be lost."""


def used_pipelines(observed: Observed, revision: str) -> int:
    """Return how many pipelines a revision's master may still use, whose pods must stay.

    A running master that did not answer may use every pipeline that has pods: a timeout of one call must not delete
    pods whose pipeline is still in the topology.
    """
    report, held = observed.reports.get(revision), observed.held_pipelines(revision)
    if report is not None:
        return min(len(report.pipelines), held)
    return 0 if observed.admin_port(revision) is None else held


def engine(view: View, revision: str, dispensable: bool = False) -> Engine:
    """Return what one revision holds and serves."""
    observed, report = view.observed, view.observed.reports.get(revision)
    held, lasts = observed.held_pipelines(revision), _master_lasts(observed, revision)
    waiting = (revision in observed.backlogs if report is None else report.has_backlog) and not dispensable
    if report is None or not lasts:
        recovering = not lasts and not dispensable
        # Neither a call without an answer nor a failed probe of a master that answers may end a waiting room.
        asleep = not dispensable and (lasts and not held if report is None else sleeps(report))
        return Engine(revision, held, dispensable=dispensable, recovering=recovering, waiting=waiting, asleep=asleep)
    phases = {pipeline.id: pipeline.phase for pipeline in report.pipelines}
    serving = frozenset(
        index for index in range(held) if phases.get(names.pipeline_id(revision, index)) == PipelinePhase.SERVING
    )
    return Engine(
        revision,
        held,
        serving,
        frozenset(range(held)) - serving,
        dispensable and not serving,
        waiting=waiting,
        asleep=sleeps(report),
    )


def _master_lasts(observed: Observed, revision: str) -> bool:
    """Whether a ready master pod belongs to a Deployment that is not being deleted.

    After the deletion of a Deployment its pod is ready until the garbage collector deletes it, also if a Deployment of
    the same name has been created again meanwhile.
    """
    created = [
        str(deployment["metadata"].get("creationTimestamp") or "")
        for deployment in observed.of_kind("Deployment")
        if label(deployment, names.REVISION_LABEL) == revision and not is_ending(deployment)
    ]
    return any(
        is_ready(pod) and str(pod["metadata"].get("creationTimestamp") or "") >= since
        for pod in observed.pods(names.MASTER, revision)
        for since in created
    )


def outdated_revisions(context: Context, observed: Observed) -> list[str]:
    """Return the other revisions that have workloads."""
    return sorted(observed.revisions() - {context.revision})


def is_dispensable(context: Context, view: View, revision: str, serving_revision: str) -> bool:
    """Whether the end of an outdated revision loses nothing: it never served, or has been down for too long.

    Requests that a master accepted are given up after `recoveryTimeoutSeconds`; so long, a revision that has served is
    kept. `serving_revision` is the revision that served last; another one may have served beside it, during a rollout.
    """
    observed = view.observed
    deployment = observed.find("Deployment", names.master(context.name, revision))
    if deployment is None or is_ending(deployment):
        return True
    if observed.master_is_ready(revision):
        return False
    if revision != serving_revision and not _was_available(deployment):
        return True
    patience = timedelta(seconds=context.spec.recovery_policy.recovery_timeout_seconds)
    since = _unavailable_since(deployment)
    return since is not None and view.now - since > patience


def _was_available(deployment: Object) -> bool:
    """Whether the pod has ever been ready: Kubernetes keeps this reason while the pod template stays the same."""
    return any(
        condition["type"] == "Progressing" and condition.get("reason") == "NewReplicaSetAvailable"
        for condition in deployment.get("status", {}).get("conditions") or []
    )


def _unavailable_since(deployment: Object) -> datetime | None:
    for condition in deployment.get("status", {}).get("conditions") or []:
        if condition["type"] == "Available" and condition["status"] == "False":
            return datetime.fromisoformat(condition["lastTransitionTime"])
    return None


def shrink(context: Context, view: View, revision: str, kept: int) -> list[Action]:
    """Return the actions that leave an outdated revision `kept` pipelines; 0 ends the revision."""
    if kept == 0:
        return _end(view, revision)
    observed, actions = view.observed, list[Action]()
    report = observed.reports.get(revision)
    if report is not None and report.topology is not None:
        fewer = _first_pipelines(report.topology, revision, kept)
        if fewer != report.topology:
            actions.append(PutTopology(revision, fewer))
    actions += _shrunk_boot(context, observed, revision, kept)
    pods = max(kept, used_pipelines(observed, revision))
    actions += [
        Scale(stateful_set, pods)
        for stateful_set in observed.of_kind("StatefulSet")
        if label(stateful_set, names.REVISION_LABEL) == revision and int(stateful_set["spec"]["replicas"]) > pods
    ]
    return actions


def _end(view: View, revision: str) -> list[Action]:
    """End the master, and after its drain everything else of the revision."""
    observed = view.observed
    own = [child for child in observed.children if label(child, names.REVISION_LABEL) == revision]
    masters = [child for child in own if child["kind"] == "Deployment"]
    draining = any(not _is_overdue(pod, view.now) for pod in observed.pods(names.MASTER, revision))
    rest = [] if draining else [child for child in own if child["kind"] in ("StatefulSet", "ConfigMap")]
    return [Delete(child) for child in masters + rest if not is_ending(child)]


def _is_overdue(pod: Object, now: datetime) -> bool:
    """Whether a pod should have ended: `deletionTimestamp` is the end of its grace period."""
    ends = pod["metadata"].get("deletionTimestamp")
    return bool(ends) and now - datetime.fromisoformat(ends) > timedelta(seconds=END_SECONDS)


def _first_pipelines(topology: Topology, revision: str, kept: int) -> Topology:
    names_kept = {names.pipeline_id(revision, index) for index in range(kept)}
    pipelines = [pipeline for pipeline in topology.pipelines if pipeline.id in names_kept]
    return topology.model_copy(update={"pipelines": pipelines}) if pipelines else topology


def _shrunk_boot(context: Context, observed: Observed, revision: str, kept: int) -> list[Action]:
    """Return the change of the boot ConfigMap, so that a master that restarts does not wait for deleted pods."""
    boot = observed.find("ConfigMap", names.boot(context.name, revision))
    if boot is None or is_ending(boot):
        return []
    topology: dict[str, Any] = json.loads(boot["data"]["topology.json"])
    names_kept = {names.pipeline_id(revision, index) for index in range(kept)}
    pipelines = [pipeline for pipeline in topology["pipelines"] if pipeline["id"] in names_kept]
    if not pipelines or len(pipelines) == len(topology["pipelines"]):
        return []
    data = {**boot["data"], "topology.json": json.dumps({**topology, "pipelines": pipelines}, indent=1, sort_keys=True)}
    metadata = context.metadata(name_of(boot), names.master_labels(context.name, revision))
    return [Apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data})]
