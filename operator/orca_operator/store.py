"""`Store`: cache of all OrcaDeployments and their children, updated by watches.

An interrupted watch may miss a deletion: an OrcaDeployment is read and its children are listed again when it is first
seen, and every RELIST_SECONDS after that.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from orca_operator.names import deployment_of
from orca_operator.observe import Object, name_of

WATCHED = (
    "Pod", "Service", "ConfigMap", "ServiceAccount", "Deployment", "StatefulSet", "ControllerRevision", "NetworkPolicy",
    "PodDisruptionBudget", "HorizontalPodAutoscaler", "ScaledObject", "PodMonitor", "Certificate",
)  # fmt: skip
"""kopf logs once that a cluster does not serve a kind, and watches the other kinds."""

Key = tuple[str, str]
"""Namespace and name of an OrcaDeployment."""


class Store:
    """Raw objects by deployment."""

    def __init__(self) -> None:
        self._deployments: dict[Key, Object] = {}
        self._deleted: dict[Key, str] = {}
        """The uid of a deployment that was deleted: a slow read may return the deployment after its deletion."""
        self._objects: dict[Key, dict[tuple[str, str], Object]] = {}

    def update_deployment(self, body: Object, deleted: bool) -> Key:
        """Apply one watch event of an OrcaDeployment, or the result of a read or write; return its key."""
        metadata = body["metadata"]
        key = (metadata["namespace"], metadata["name"])
        if deleted:
            self._deleted[key] = metadata["uid"]
            self._deployments.pop(key, None)
        elif self._deleted.get(key) != metadata["uid"]:
            known = self._deployments.get(key)
            if known is None or _is_newer(body, known):
                self._deployments[key] = _without_owners(body)
        return key

    def deployment(self, key: Key) -> Object | None:
        """Return an OrcaDeployment, None if it has to be read from the API server."""
        return self._deployments.get(key)

    def drop_deployment(self, key: Key) -> None:
        """Have an OrcaDeployment read from the API server by the next pass."""
        self._deployments.pop(key, None)

    def update(self, kind: str, body: dict[str, Any], deleted: bool) -> Key | None:
        """Apply one watch event; return the deployment of the object.

        A deletion also drops the OrcaDeployment: the garbage collector may have deleted the child of one whose own
        deletion the watch has missed.
        """
        deployment = deployment_of(body["metadata"])
        if deployment is None:
            return None
        key = (body["metadata"]["namespace"], deployment)
        objects = self._objects.setdefault(key, {})
        if deleted:
            objects.pop((kind, name_of(body)), None)
            self.drop_deployment(key)
        else:
            self._put(objects, {**body, "kind": kind})
        return key

    def replace(self, key: Key, listed: Iterable[Object]) -> None:
        """Replace a deployment's children by a complete listing."""
        objects: dict[tuple[str, str], Object] = {}
        for item in listed:
            self._put(objects, item)
        self._objects[key] = objects

    def children(self, key: Key) -> tuple[Object, ...]:
        """Return the known children of a deployment."""
        return tuple(self._objects.get(key, {}).values())

    def forget(self, key: Key) -> None:
        """Drop a deleted deployment."""
        self._deployments.pop(key, None)
        self._deleted.pop(key, None)
        self._objects.pop(key, None)

    @staticmethod
    def _put(objects: dict[tuple[str, str], Object], body: Object) -> None:
        """Keep the newer object: an event may be older than a listing."""
        place = (str(body["kind"]), name_of(body))
        known = objects.get(place)
        if known is None or _is_newer(body, known):
            objects[place] = _without_owners(body)


def _is_newer(body: Object, known: Object) -> bool:
    """Whether an object replaces the known one of its name: it is another object, or not older."""
    return bool(known["metadata"]["uid"] != body["metadata"]["uid"] or _age(known) <= _age(body))


def _without_owners(body: Object) -> Object:
    """Return an object without the field owners, which no pass reads: they double the size of a small object."""
    metadata = {field: value for field, value in body["metadata"].items() if field != "managedFields"}
    return {**body, "metadata": metadata}


def _age(body: Object) -> int:
    """Return the resourceVersion as a number: opaque by contract, but a rising integer on every server (KEP-5504)."""
    text = str(body["metadata"].get("resourceVersion", "0"))
    return int(text) if text.isdecimal() else 0
