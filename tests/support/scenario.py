"""`Scenario`: an OrcaDeployment, a sequence of events, and the result of one pass of the operator after each step.

A scenario is a YAML file:

    about: summary of the scenario
    deployment: the OrcaDeployment
    begin: serving                      all pods are ready before the first step (default: the deployment is new)
    notServed: [PodMonitor]             kinds that the cluster does not serve
    steps:
    - what: a sentence                  then any of the following events, in order
      edit: {replicas: 2}               JSON merge patch of the spec
      pods: {all: Running, p0-1: Ready} Kubernetes creates and deletes pods, then sets states (support/pods.py);
                                        `new p0-1`: of revisions that are not the first
      nodes: {n2: lost}                 a node's kubelet reports no longer, or (`ready`) reports
      masters: {silent: true}           attributes of support/masters.py
      refuse: {apply Service: [403, x]} calls that the API server refuses from now on
      events: {StatefulSet p0: [FailedCreate, x]}  Kubernetes writes Events about children, the
                                        newest of this name: reason, message
      remove: [Service demo]            another client deletes children, by the ends of their names
      change: {StatefulSet p0: {spec: {}}}  another client changes a child: JSON merge patch
      seconds: 600                      time before the pass (5)
      operator: restarts                the operator restarts without its in-memory state
      deployment: deleted               or `recreated` under the same name, `orphaning` (recreated, after a
                                        deletion that left the children), or `ending` (foreground deletion)

`play` returns one entry per step, see `Player.play`. Revisions are replaced by <rev1>, <rev2> … in order of creation;
contents of Secrets and addresses of pods are left out.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import yaml
from orca_operator.cluster import ClusterError
from orca_operator.metrics import Metrics
from orca_operator.observe import owner_uid
from orca_operator.reconcile import Reconciler

from support import pods
from support.api_server import Api
from support.masters import Masters
from support.orcadeployments import IMAGES

KEY = ("default", "demo")
BEGINNING = datetime(2026, 1, 1, tzinfo=UTC)
STEP_SECONDS = 5
ABSENT = None
"""Marks an object, a field or a condition in a golden file that existed before the step."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """One file; `folder` also holds expected.yaml."""

    folder: Path
    about: str
    deployment: dict[str, Any]
    steps: list[dict[str, Any]]
    begin: str = "nothing"
    not_served: tuple[str, ...] = ()

    @classmethod
    def read(cls, folder: Path) -> Scenario:
        """Read scenario.yaml of a folder."""
        content = yaml.safe_load((folder / "scenario.yaml").read_text())
        not_served = tuple(content.pop("notServed", ()))
        return cls(folder, not_served=not_served, **content)


def merge_patch(value: Any, patch: Any) -> Any:
    """Apply a JSON merge patch (RFC 7386)."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(value) if isinstance(value, dict) else {}
    for key, entry in patch.items():
        if entry is None:
            merged.pop(key, None)
        else:
            merged[key] = merge_patch(merged.get(key), entry)
    return merged


@dataclass(slots=True)
class Player:
    """Plays one scenario; every step ends with one pass of a Reconciler."""

    scenario: Scenario
    now: datetime = BEGINNING
    revisions: list[str] = field(default_factory=list)
    api: Api = field(init=False)
    masters: Masters = field(init=False)
    reconciler: Reconciler = field(init=False)

    def __post_init__(self) -> None:
        deployment = self.scenario.deployment
        self.api = Api(deployment["spec"], self.scenario.not_served)
        assert self.api.resource is not None
        self.api.resource["metadata"] |= deployment["metadata"]
        self.masters = Masters(self.api)
        self._start_operator()

    async def play(self) -> str:
        """Return YAML: for each step the operator's writes, and the changes of children and status."""
        entries = []
        if self.scenario.begin == "serving":
            await self._step({"what": "creation"})
            await self._step({"what": "start", "pods": {"all": "Ready"}})
            assert self.api.condition("Ready") == ("True", "Serving")
        for step in self.scenario.steps:
            children, status = self._children(), self._status()
            ended = await self._step(step)
            entry = {
                "what": step["what"],
                "pass": ended,
                "writes": list(self.api.calls),
                "children": _changes(children, self._children()),
                "status": _changes(status, self._status()),
            }
            entries.append({key: value for key, value in entry.items() if value})
        await self.masters.close()
        return self._text(entries)

    async def _step(self, step: dict[str, Any]) -> str:
        """Apply a step's events and run one pass; return its result, "" if the OrcaDeployment still exists."""
        self.api.calls.clear()
        for event, value in step.items():
            if event not in ("what", "seconds"):
                getattr(self, f"_{event}")(value)
        self.now += timedelta(seconds=step.get("seconds", STEP_SECONDS))
        try:
            exists = await self.reconciler.run_pass(KEY)
        except ClusterError as error:
            return f"failed, will be retried: {error.status} {error}"
        finally:
            revision = ((self.api.resource or {}).get("status") or {}).get("updateRevision")
            if revision is not None and revision not in self.revisions:
                self.revisions.append(revision)
        return "" if exists else "the OrcaDeployment is deleted: last pass"

    # -- events --------------------------------------------------------------------------------------------------------

    def _start_operator(self) -> None:
        self.reconciler = self.api.reconciler = Reconciler(
            self.api, IMAGES, self.masters, Metrics(), clock=lambda: self.now  # type: ignore[arg-type]
        )  # fmt: skip

    def _operator(self, event: str) -> None:
        assert event == "restarts"
        self._start_operator()

    def _edit(self, patch: dict[str, Any]) -> None:
        resource = self.api.resource
        assert resource is not None
        metadata = resource["metadata"] | {"generation": resource["metadata"]["generation"] + 1}
        self.api.resource = {**resource, "metadata": metadata, "spec": merge_patch(resource["spec"], patch)}

    def _pods(self, states: dict[str, str]) -> None:
        pods.follow_workloads(self.api, self.now)
        for pattern, state in states.items():
            matching = [
                name
                for kind, name in list(self.api.objects)
                if kind == "Pod" and pattern in ("all", self._short(name), self._among_new(name))
            ]
            assert matching, f"no pod {pattern}"
            for name in matching:
                pods.set_state(self.api, name, state)

    def _nodes(self, states: dict[str, str]) -> None:
        for name, state in states.items():
            pods.set_node(self.api, name, state == "lost", self.now)

    def _masters(self, attributes: dict[str, Any]) -> None:
        for name, value in attributes.items():
            assert hasattr(self.masters, name), name
            setattr(self.masters, name, value)

    def _refuse(self, refusals: dict[str, list[Any]]) -> None:
        self.api.refusals = {call: (status, message) for call, (status, message) in refusals.items()}

    def _events(self, events: dict[str, list[str]]) -> None:
        for child, (reason, message) in events.items():
            kind, _, suffix = child.partition(" ")
            *_, uid = (
                body["metadata"]["uid"]
                for (of, name), body in self.api.objects.items()
                if of == kind and name.endswith(suffix)
            )
            self.api.recorded.append({
                "metadata": {}, "involvedObject": {"uid": uid}, "reason": reason, "message": message,
                "lastTimestamp": self.now.isoformat(),
            })  # fmt: skip

    def _remove(self, children: list[str]) -> None:
        for child in children:
            kind, _, suffix = child.partition(" ")
            (name,) = (name for of, name in self.api.objects if of == kind and name.endswith(suffix))
            self.api.remove(kind, name)

    def _change(self, patches: dict[str, Any]) -> None:
        for child, patch in patches.items():
            kind, _, suffix = child.partition(" ")
            (name,) = (name for of, name in self.api.objects if of == kind and name.endswith(suffix))
            self.api.put(merge_patch(self.api.objects[kind, name], patch))

    def _deployment(self, event: str) -> None:
        resource = self.api.resource
        assert resource is not None
        if event == "ending":
            metadata = {**resource["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"}
            self.api.resource = {**resource, "metadata": metadata}
            return
        if event == "orphaning":
            uid = resource["metadata"]["uid"]
            for child in [child for child in self.api.objects.values() if owner_uid(child) == uid]:
                self.api.put({**child, "metadata": {**child["metadata"], "ownerReferences": []}})
        if event in ("recreated", "orphaning"):
            metadata = {**resource["metadata"], "uid": "22222222-0000", "generation": 1}
            self.api.resource = {**resource, "metadata": metadata, "status": {}}
            return
        assert event == "deleted"
        self.api.resource = None
        deleted = {resource["metadata"]["uid"]}
        while orphans := [key for key, child in self.api.objects.items() if owner_uid(child) in deleted]:
            for key in orphans:
                deleted.add(self.api.objects[key]["metadata"]["uid"])
                self.api.remove(*key)

    # -- content of a golden file --------------------------------------------------------------------------------------

    def _children(self) -> dict[str, Any]:
        return {f"{kind} {name}": _summary(kind, child) for (kind, name), child in self.api.objects.items()}

    def _status(self) -> dict[str, Any]:
        if self.api.resource is None:
            return {}
        status = dict(self.api.resource.get("status") or {})
        conditions = status.pop("conditions", [])
        pipelines = status.pop("pipelines", None)
        shown = {**status}
        if pipelines is not None:
            shown["pipelines"] = [_pipeline(pipeline) for pipeline in pipelines]
        for condition in conditions:
            # A failed pass changes single conditions of a status that is that of an earlier generation.
            assert condition["observedGeneration"] >= status.get("observedGeneration", 0)
            since = int((datetime.fromisoformat(condition["lastTransitionTime"]) - BEGINNING).total_seconds())
            message = condition["message"]
            if condition["type"] != "Ready" and message == conditions[0]["message"]:
                message = "(as Ready)"
            shown[condition["type"]] = f"{condition['status']} since {since} s, {condition['reason']}: {message}"
        return shown

    def _text(self, entries: list[dict[str, Any]]) -> str:
        text = yaml.safe_dump(entries, sort_keys=False, width=1000, allow_unicode=True)
        for index, revision in enumerate(self.revisions, 1):
            text = text.replace(revision, f"<rev{index}>")
        for (kind, name), child in self.api.objects.items():
            if kind == "Secret":
                assert not [key for key, value in child["data"].items() if value in text], f"a secret of {name}"
        return text

    def _among_new(self, pod: str) -> str:
        """Return `new p0-1` for a pod of a revision that is not the first."""
        return f"new {self._short(pod)}" if pods.revision_of(self.api.objects["Pod", pod]) != self.revisions[0] else ""

    def _short(self, pod: str) -> str:
        """Return `p0-1` or `master`: a pod's name without the names of the OrcaDeployment and the revision."""
        return pod.removeprefix(f"demo-{pods.revision_of(self.api.objects['Pod', pod])}-").partition("-5c9f8")[0]


def _changes(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """Return the entries that differ, with ABSENT for removed ones."""
    if not after:
        return {"everything": ABSENT} if before else {}
    changed = {key: value for key, value in after.items() if key not in before or before[key] != value}
    return changed | {key: ABSENT for key in before if key not in after}


def _pipeline(pipeline: dict[str, Any]) -> str:
    text = "{id}: {phase}, epoch {epoch}, {readyWorkers} workers ready".format(**pipeline)
    if restarts := pipeline.get("restarts"):
        text += f", {restarts} restarts"
    if failure := pipeline.get("lastFailure"):
        recovered = f", recovered in {failure['recoverySeconds']} s" if "recoverySeconds" in failure else ""
        text += f", last failure {failure['reason']} of {failure.get('pod', 'nobody')}: {failure['message']}{recovered}"
    return text


def _summary(kind: str, child: dict[str, Any]) -> str:
    """Return the fields of a child that matter to scenarios; test_manifests.py checks whole objects."""
    match kind:
        case "StatefulSet" | "Deployment":
            replicas, template = child["spec"]["replicas"], child["spec"]["template"]
            text = f"{replicas} of {template['spec']['containers'][0]['image']}"
        case "ConfigMap":
            pipelines = json.loads(child["data"]["topology.json"])["pipelines"]
            text = f"pipelines {', '.join(pipeline['id'] for pipeline in pipelines)}"
        case "ControllerRevision":
            text = f"revision {child['revision']}"
        case "Secret":
            text = f"keys {', '.join(sorted(child['data']))}"
        case "Service":
            text = f"type {child['spec'].get('type', 'ClusterIP')}, port {child['spec']['ports'][0]['port']}"
        case "Pod":
            text = pods.state_of(child)
        case "Node":
            text = f"Ready {child['status']['conditions'][0]['status']}"
        case "HorizontalPodAutoscaler":
            text = "{minReplicas} to {maxReplicas} pipelines".format(**child["spec"])
        case "ScaledObject":
            text = "{minReplicaCount} to {maxReplicaCount} pipelines".format(**child["spec"])
            text += ", paused" if child["metadata"].get("annotations") else ""
        case _:
            text = "present"
    return text
