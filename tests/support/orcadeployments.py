"""Builders of OrcaDeployments and related objects."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import yaml
from orca_contract.message import VERSION
from orca_contract.state import EngineState, FailureReport, JournalState, PipelinePhase, PipelineReport, StateReport
from orca_operator import names
from orca_operator.actions import Apply
from orca_operator.diagnose import View, look
from orca_operator.manifests import boot
from orca_operator.manifests.context import Context, Images
from orca_operator.observe import Observed
from orca_operator.plan import plan
from orca_operator.revision import revision_hash
from orca_operator.validation import parse

ROOT = Path(__file__).parents[2]
UID = "11111111-2222-3333-4444-555555555555"
IMAGES = Images("orca-master:test", "orca-worker:test")
NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
MINIMAL = {"model": {"uri": "file:///models/demo"}}


def example(name: str) -> dict[str, Any]:
    """Return a manifest of examples/."""
    return yaml.safe_load((ROOT / "examples" / f"{name}.yaml").read_text())


def context(spec: dict[str, Any] | None = None, name: str = "demo", namespace: str = "default") -> Context:
    """Return the context of a spec."""
    parsed = parse(name, spec or MINIMAL)
    return Context(name, namespace, UID, parsed, revision_hash(parsed), IMAGES)


def merged(base: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """Return `base` with top-level fields replaced."""
    return {**base, **changes}


def live(manifest: dict[str, Any], generation: int = 1) -> dict[str, Any]:
    """Return a manifest as the API server would return it."""
    metadata = {**manifest["metadata"], "uid": f"uid-{manifest['metadata']['name']}", "generation": generation}
    return {**manifest, "metadata": metadata | {"resourceVersion": str(generation)}}


def pod(
    deployment: Context,
    role: str = names.WORKER,
    partition: int = 0,
    pipeline: int = 0,
    revision: str | None = None,
    ready: bool = False,
    **status: Any,
) -> dict[str, Any]:
    """Return a pod with a status, by default scheduled and running."""
    revision = revision or deployment.revision
    if role == names.WORKER:
        name = f"{names.partition(deployment.name, revision, partition)}-{pipeline}"
        labels, workload = names.worker_labels(deployment.name, revision, partition), "StatefulSet"
    else:
        name = f"{names.master(deployment.name, revision)}-5c9f8-abcde"
        labels, workload = names.master_labels(deployment.name, revision), "ReplicaSet"
    conditions = [
        {"type": "PodScheduled", "status": "True"},
        {"type": "Ready", "status": "True" if ready else "False"},
    ]
    running = [{"name": role, "image": "image", "restartCount": 0, "state": {"running": {}}}]
    return {
        "kind": "Pod",
        "metadata": {
            "name": name, "namespace": deployment.namespace, "labels": labels, "uid": f"uid-{name}",
            "creationTimestamp": (NOW - timedelta(days=1)).isoformat(),
            "ownerReferences": [{"kind": workload, "name": "w", "uid": "w", "controller": True}],
        },
        "spec": {"containers": [{"name": role, "resources": {"limits": {"memory": "64Mi"}}}]},
        "status": {
            "phase": "Running", "podIP": "10.0.0.1", "conditions": conditions, "containerStatuses": running, **status,
        },
    }  # fmt: skip


def report(
    deployment: Context, phase: PipelinePhase = PipelinePhase.SERVING, pipelines: int = 1, **failure: Any
) -> StateReport:
    """Return a master's state report, in which all pipelines have the same state, and no knob was changed."""
    knobs = boot.scheduler_knobs(deployment, boot.kept_files(deployment))
    last = FailureReport(**{"at": 0.0, "worker": "", "recovery_seconds": None, **failure}) if failure else None
    return StateReport(
        contract_version=VERSION,
        state=EngineState.SERVING,
        failure="",
        draining=False,
        idle=True,
        running=0,
        waiting=0,
        topology=boot.topology(deployment, pipelines),
        scheduler=knobs.known_to(0),
        in_force=knobs.model_copy(update={"max_expected_wait_seconds": 60.0, "policy": "fcfs"}),
        pipelines=[
            PipelineReport(
                id=names.pipeline_id(deployment.revision, index),
                phase=phase,
                epoch=1,
                loaded_workers=0,
                last_failure=last,
            )
            for index in range(pipelines)
        ],
        journal=JournalState.ON,
    )


def view(observed: Observed, now: datetime = NOW) -> View:
    """Return the view of a pass."""
    return look(observed, now)


def everything(deployment: Context, pipelines: int = 1) -> Observed:
    """Return the observed objects of a deployment in steady state, built from its plan."""
    children = [live(action.manifest) for action in plan(deployment, view(Observed())) if isinstance(action, Apply)]
    partitions = range(deployment.spec.parallelism.pipeline_parallel_size)
    children += [
        pod(deployment, partition=partition, pipeline=pipeline, ready=True)
        for partition in partitions
        for pipeline in range(pipelines)
    ]
    children.append(pod(deployment, names.MASTER, ready=True))
    reports = {deployment.revision: report(deployment, pipelines=pipelines)} if pipelines else {}
    return Observed(tuple(children), reports)
