"""The observed state: the raw children of one OrcaDeployment and its masters' reports as one frozen value. Pure.

Objects stay the API's own dictionaries; the other modules read them through the functions here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from orca_contract.state import StateReport

from orca_operator.names import (
    ADMIN_PORT,
    CERTIFICATE_VOLUME,
    KIND,
    MASTER,
    REVISION_LABEL,
    ROLE_LABEL,
    WORKER,
)

Object = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class AdminPort:
    """`address` is host:port; `secret` the Secret with the master's certificate, "" for a master without TLS."""

    address: str
    secret: str


@dataclass(frozen=True, slots=True)
class Observed:
    """One OrcaDeployment's children and its masters' reports (`GET /state`) by revision.

    `unauthorized`: revisions whose master rejects the operator's token. `backlogs`: revisions without a report whose
    last one, a short time ago, had a backlog. `unanswered`: why masters have not responded for some time, by revision.
    """

    children: tuple[Object, ...] = ()
    reports: Mapping[str, StateReport] = field(default_factory=dict)
    unauthorized: frozenset[str] = frozenset()
    backlogs: frozenset[str] = frozenset()
    unanswered: Mapping[str, str] = field(default_factory=dict)

    def of_kind(self, kind: str) -> list[Object]:
        """Return the children of one kind, sorted by name."""
        return sorted((child for child in self.children if child["kind"] == kind), key=name_of)

    def find(self, kind: str, name: str) -> Object | None:
        """Return one child, None if it does not exist."""
        return next((child for child in self.of_kind(kind) if name_of(child) == name), None)

    def pods(self, role: str | None = None, revision: str | None = None) -> list[Object]:
        """Return the pods of a role, of a revision, or all, without masters that have ended and were replaced."""
        return [
            pod
            for pod in self.of_kind("Pod")
            if (role is None or label(pod, ROLE_LABEL) == role)
            and (revision is None or label(pod, REVISION_LABEL) == revision)
            and not self._was_replaced(pod)
        ]

    def _was_replaced(self, pod: Object) -> bool:
        """Whether another pod does the work of one that has ended: a Deployment keeps its evicted pods."""
        return (
            has_ended(pod)
            and label(pod, ROLE_LABEL) == MASTER
            and any(
                label(other, ROLE_LABEL) == MASTER
                and label(other, REVISION_LABEL) == label(pod, REVISION_LABEL)
                and not has_ended(other)
                for other in self.of_kind("Pod")
            )
        )

    def workers(self, revision: str, pipeline: int) -> list[Object]:
        """Return the pods of one pipeline, sorted by partition."""
        pods = [pod for pod in self.pods(WORKER, revision) if ordinal(pod) == pipeline]
        return sorted(pods, key=lambda pod: (len(name_of(pod)), name_of(pod)))  # p2 before p10

    def stored_revisions(self) -> list[Object]:
        """Return the OrcaDeployment's own ControllerRevisions; those of its StatefulSets have the same labels."""
        return [stored for stored in self.of_kind("ControllerRevision") if owner(stored).get("kind", KIND) == KIND]

    def revisions(self) -> set[str]:
        """Return the revisions that have a master or workers; objects of others may have the deployment's label."""
        return {
            revision
            for kind in ("Deployment", "StatefulSet")
            for child in self.of_kind(kind)
            if (revision := label(child, REVISION_LABEL))
        }

    def held_pipelines(self, revision: str) -> int:
        """Return how many pipelines of a revision have pods, by its StatefulSets."""
        replicas = [
            int(stateful_set["spec"]["replicas"])
            for stateful_set in self.of_kind("StatefulSet")
            if label(stateful_set, REVISION_LABEL) == revision
        ]
        return max(replicas, default=0)

    def master_is_ready(self, revision: str) -> bool:
        """Whether a revision's master accepts requests."""
        return any(is_ready(pod) for pod in self.pods(MASTER, revision))

    def is_silent(self, revision: str) -> bool:
        """Whether a revision's master accepts requests, but this pass has no report from it."""
        return revision not in self.reports and self.master_is_ready(revision)

    def admin_port(self, revision: str) -> AdminPort | None:
        """Return the admin port of a revision's master, if it runs."""
        for pod in sorted(self.pods(MASTER, revision), key=is_ready, reverse=True):
            address = pod.get("status", {}).get("podIP")
            if address and not is_ending(pod) and not has_ended(pod):
                host = f"[{address}]" if ":" in address else address
                return AdminPort(f"{host}:{ADMIN_PORT}", certificate_secret(pod["spec"]))
        return None

    def certificate_secrets(self) -> dict[str, str]:
        """Return the Secret with the certificate of the master, by revision; "" for plaintext."""
        return {
            label(deployment, REVISION_LABEL): certificate_secret(deployment["spec"]["template"]["spec"])
            for deployment in self.of_kind("Deployment")
        }


def certificate_secret(pod_spec: Object) -> str:
    """Return the Secret with a pod's certificate, "" for a pod without TLS.

    Read from the pod, not from the spec: a revision keeps the pod templates of its start.
    """
    for volume in pod_spec.get("volumes") or []:
        if volume["name"] == CERTIFICATE_VOLUME:
            return str(volume.get("secret", {}).get("secretName", ""))
    return ""


def name_of(child: Object) -> str:
    """Return metadata.name."""
    return str(child["metadata"]["name"])


def label(child: Object, key: str) -> str:
    """Return a label's value, "" without the label."""
    return str((child["metadata"].get("labels") or {}).get(key, ""))


def ordinal(pod: Object) -> int:
    """Return the number at the end of a StatefulSet pod's name: its pipeline."""
    number = name_of(pod).rpartition("-")[2]
    return int(number) if number.isdecimal() else -1


def is_ending(child: Object) -> bool:
    """Whether an object is being deleted."""
    return bool(child["metadata"].get("deletionTimestamp"))


def has_ended(pod: Object) -> bool:
    """Whether no container of a pod will run again, as after an eviction; its object remains."""
    return pod.get("status", {}).get("phase") in ("Failed", "Succeeded")


def owner(child: Object) -> Object:
    """Return the reference to the controlling owner, {} without one."""
    references = child["metadata"].get("ownerReferences") or []
    return next((reference for reference in references if reference.get("controller")), {})


def owner_uid(child: Object) -> str:
    """Return the uid of the controlling owner, "" without one."""
    return str(owner(child).get("uid", ""))


def pod_condition(pod: Object, kind: str) -> Object:
    """Return a condition of a pod, {} without it."""
    conditions = pod.get("status", {}).get("conditions") or []
    return next((condition for condition in conditions if condition["type"] == kind), {})


def is_ready(pod: Object) -> bool:
    """Whether a pod passes its readiness probe."""
    return pod_condition(pod, "Ready").get("status") == "True" and not is_ending(pod)


def container_statuses(pod: Object, key: str = "containerStatuses") -> list[Object]:
    """Return the statuses of containers, or of init containers for the key `initContainerStatuses`."""
    return list(pod.get("status", {}).get(key) or [])


def runs(pod: Object) -> bool:
    """Whether a container of a pod runs."""
    return any("running" in container.get("state", {}) for container in container_statuses(pod))


def restarts(pod: Object) -> int:
    """Return the number of container restarts of a pod."""
    return sum(int(status.get("restartCount", 0)) for status in container_statuses(pod))


def version(live: Mapping[str, Any]) -> str:
    """Return a value that changes with the object's content, but not with its status alone.

    A generation is that of the spec: labels and owners do not change it, and an object that replaces another has
    generation 1 too.
    """
    metadata = live["metadata"]
    if "generation" not in metadata and "status" not in live:
        return f"r{metadata['resourceVersion']}"
    content: dict[str, Any] = {key: metadata.get(key) for key in ("uid", "generation", "labels", "ownerReferences")}
    if "generation" not in metadata:  # an HPA, whose status changes with every value of a metric
        content |= {"annotations": metadata.get("annotations"), "spec": live.get("spec")}
    return json.dumps(content, sort_keys=True)
