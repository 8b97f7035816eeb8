"""`Api`: an in-memory API server with the methods of orca_operator.cluster.Cluster, for tests of the Reconciler."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

from orca_operator.cluster import API_VERSIONS, ClusterError, KindNotServedError
from orca_operator.conditions import find_condition
from orca_operator.names import KIND
from orca_operator.reconcile import Reconciler

from support.orcadeployments import UID

Refusals = Mapping[str, tuple[int, str]]
"""HTTP status and message by call: `apply StatefulSet`, `patch_status OrcaDeployment` …"""


class Api:
    """One OrcaDeployment (`resource`, None once deleted) and its children by kind and name.

    A change updates the reconciler's store at once, like a watch event; a new reconciler gets the OrcaDeployment.
    `calls` lists Events and the writes that changed an object, `reads` the kinds of objects that were read by name,
    `refusals` the calls that fail, `not_served` the kinds that the cluster does not serve.
    """

    def __init__(self, spec: dict[str, Any], not_served: tuple[str, ...] = ()) -> None:
        self.objects: dict[tuple[str, str], dict[str, Any]] = {}
        metadata = {"name": "demo", "namespace": "default", "uid": UID, "generation": 1, "resourceVersion": "1"}
        self._resource: dict[str, Any] | None = {"kind": KIND, "metadata": metadata, "spec": spec}
        self._reconciler: Reconciler | None = None
        self.statuses: list[dict[str, Any]] = []
        self.calls: list[str] = []
        self.reads: list[str] = []
        self.refusals: Refusals = {}
        self.recorded: list[dict[str, Any]] = []
        self.not_served = not_served
        self._version = 0
        self._resource_version = 1

    @property
    def resource(self) -> dict[str, Any] | None:
        """The OrcaDeployment."""
        return self._resource

    @resource.setter
    def resource(self, resource: dict[str, Any] | None) -> None:
        before = self._resource
        if resource is not None:
            self._resource_version += 1
            metadata = {**resource["metadata"], "resourceVersion": str(self._resource_version)}
            resource = {**resource, "metadata": metadata}
        self._resource = resource
        if self._reconciler is not None and (latest := resource or before) is not None:
            self._reconciler.store.update_deployment(latest, deleted=resource is None)

    @property
    def reconciler(self) -> Reconciler | None:
        """The operator that watches this server."""
        return self._reconciler

    @reconciler.setter
    def reconciler(self, reconciler: Reconciler) -> None:
        self._reconciler = reconciler
        self.resource = self._resource

    def get(self, kind: str, namespace: str, name: str) -> dict[str, Any] | None:
        self._admit("get", kind)
        self.reads.append(kind)
        if kind == KIND:
            return self.resource if self.resource is not None and name == self.resource["metadata"]["name"] else None
        return self.objects.get((kind, name))

    def children(self, kind: str, namespace: str, deployment: str) -> list[dict[str, Any]]:
        self._admit("list", kind)
        return [child for (of, _), child in self.objects.items() if of == kind != "Secret"]

    def apply(self, manifest: dict[str, Any], dry_run: bool = False) -> dict[str, Any]:
        """Server-side apply by the only field owner: removes fields that the manifest lacks, keeps the status."""
        kind, name = manifest["kind"], manifest["metadata"]["name"]
        self._admit("apply", kind)
        before = self.objects.get((kind, name))
        if kind == "ControllerRevision" and before is not None and before["data"] != manifest["data"]:
            raise ClusterError(422, f'ControllerRevision.apps "{name}" is invalid: data: field is immutable')
        if dry_run:
            return manifest
        if before is not None and _content(before) == _content(manifest):
            return before
        self.calls.append(f"apply {kind} {name}")
        self.put(manifest | ({"status": before["status"]} if before and "status" in before else {}))
        return self.objects[kind, name]

    def events(self, namespace: str, uid: str) -> list[dict[str, Any]]:
        self._admit("list", "Event")
        return [event for event in self.recorded if event["involvedObject"]["uid"] == uid]

    def create(self, manifest: dict[str, Any]) -> dict[str, Any]:
        kind = manifest["kind"]
        self._admit("create", kind)
        if kind == "Event":
            self.calls.append(f"Event {manifest['type']} {manifest['reason']}: {manifest['message']}")
            return manifest
        self.calls.append(f"create {kind} {manifest['metadata']['name']}")
        plain = manifest.get("stringData", {})
        data = {key: base64.b64encode(value.encode()).decode() for key, value in plain.items()}
        self.put({**{key: value for key, value in manifest.items() if key != "stringData"}, "data": data})
        return manifest

    def scale(self, kind: str, namespace: str, name: str, replicas: int) -> None:
        self._admit("scale", kind)
        self.calls.append(f"scale {kind} {name} to {replicas}")
        live = self.objects[kind, name]
        self.put({**live, "spec": {**live["spec"], "replicas": replicas}})

    def merge(self, kind: str, namespace: str, name: str, fields: dict[str, Any]) -> dict[str, Any]:
        """Apply a merge patch to an object of the patch's version."""
        self._admit("patch", kind)
        live = self.objects[kind, name]
        if fields["metadata"]["resourceVersion"] != live["metadata"]["resourceVersion"]:
            raise ClusterError(409, "the object has been modified; please apply your changes to the latest version")
        self.calls.append(f"patch {kind} {name}")
        self.put(_merged(live, fields))
        return self.objects[kind, name]

    def delete(self, kind: str, namespace: str, name: str, uid: str) -> None:
        self._admit("delete", kind)
        if (kind, name) in self.objects:
            self.calls.append(f"delete {kind} {name}")
            self.remove(kind, name)

    def force_delete(self, namespace: str, pod: str, uid: str) -> bool:
        self._admit("delete", "Pod")
        if self.objects.get(("Pod", pod), {}).get("metadata", {}).get("uid") != uid:
            return False
        self.calls.append(f"delete Pod {pod} by force")
        self.remove("Pod", pod)
        return True

    def patch_status(self, namespace: str, name: str, status: dict[str, Any], version: str) -> dict[str, Any]:
        """Apply a merge patch, None removes a field; refuse (409) a patch of another version."""
        self._admit("patch_status", KIND)
        if self.resource is None:
            raise ClusterError(404, "not found")
        if self.resource["metadata"]["resourceVersion"] != version:
            raise ClusterError(409, "the object has been modified; please apply your changes to the latest version")
        kept = _merged(self.resource.get("status") or {}, status)
        self.resource = {**self.resource, "status": kept}
        self.statuses.append(kept)
        return self.resource

    # -- changes by other clients --------------------------------------------------------------------------------------

    def put(self, body: dict[str, Any]) -> None:
        """Store an object; set uid, generation and resource version."""
        kind, name = body["kind"], body["metadata"]["name"]
        before = self.objects.get((kind, name), {}).get("metadata", {})
        self._version += 1
        metadata = {"uid": f"uid-{self._version}", **body["metadata"], "resourceVersion": str(self._version)}
        if "uid" in before:
            metadata["uid"] = before["uid"]
        if "spec" in body:
            metadata["generation"] = before.get("generation", 0) + 1
        self.objects[kind, name] = {**body, "metadata": metadata}
        self._notify(kind, self.objects[kind, name], deleted=False)

    def delete_unwatched(self) -> None:
        """Delete the OrcaDeployment while the watch is interrupted."""
        self._resource = None

    def replace_unwatched(self, uid: str) -> None:
        """Delete the OrcaDeployment and create it again while the watch is late."""
        assert self._resource is not None
        self._resource_version += 1
        metadata = {**self._resource["metadata"], "uid": uid, "resourceVersion": str(self._resource_version)}
        self._resource = {"kind": KIND, "metadata": metadata, "spec": self._resource["spec"]}

    def remove(self, kind: str, name: str) -> None:
        """Remove an object."""
        self._notify(kind, self.objects.pop((kind, name)), deleted=True)

    # -- queries of tests ----------------------------------------------------------------------------------------------

    def condition(self, kind: str) -> tuple[str, str]:
        """Return status and reason of one condition of the OrcaDeployment."""
        condition = find_condition((self.resource or {}).get("status", {}), kind)
        return condition.get("status", ""), condition.get("reason", "")

    def kinds(self) -> set[str]:
        """Return the kinds of the children."""
        return {kind for kind, _ in self.objects}

    def _admit(self, verb: str, kind: str) -> None:
        if kind in self.not_served:
            raise KindNotServedError(f"{API_VERSIONS[kind]} {kind}")
        if (refusal := self.refusals.get(f"{verb} {kind}")) is not None:
            raise ClusterError(*refusal)

    def _notify(self, kind: str, body: dict[str, Any], deleted: bool) -> None:
        if self.reconciler is not None and kind != "Secret":
            self.reconciler.store.update(kind, body, deleted)


def _content(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return an object without the fields that the server adds."""
    metadata = {key: body["metadata"].get(key) for key in ("labels", "annotations", "ownerReferences")}
    return {**{key: value for key, value in body.items() if key != "status"}, "metadata": metadata}


def _merged(old: dict[str, Any], patch: dict[str, Any]) -> dict[str, Any]:
    """Apply a JSON merge patch (RFC 7386) whose lists replace the old ones."""
    new = dict(old)
    for name, value in patch.items():
        before = old.get(name)
        new[name] = _merged(before if isinstance(before, dict) else {}, value) if isinstance(value, dict) else value
    return {name: value for name, value in new.items() if value is not None}
