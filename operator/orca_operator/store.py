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
Place = tuple[str, str]
"""Kind and name of a child."""


class Store:
    """Raw objects by deployment."""

    def __init__(self) -> None:
        self._deployments: dict[Key, Object] = {}
        self._deleted: dict[Key, str] = {}
        """The uid of a deployment that was deleted: a slow read may return the deployment after its deletion."""
        self._objects: dict[Key, dict[Place, Object]] = {}
        self._events: dict[Key, list[tuple[str, Object, bool]]] = {}
        """The events (kind, object, whether it was deleted) since the start of a deployment's listing."""

    def update_deployment(self, body: Object, deleted: bool) -> Key:
        """Apply one watch event of an OrcaDeployment, or the result of a read or write; return its key."""
        metadata = body["metadata"]
        key = (metadata["namespace"], metadata["name"])
        if deleted:
            self._deleted[key] = metadata["uid"]
            if (known := self._deployments.get(key)) is not None and _is_same(body, known):
                self.drop_deployment(key)
        elif self._deleted.get(key) != metadata["uid"]:
            known = self._deployments.get(key)
            if known is None or _is_newer(body, known):
                self._deployments[key] = _without_owners(body)
        return key

    def has(self, body: Object) -> bool:
        """Whether this very version of an OrcaDeployment is known, for example from the response to a write."""
        metadata = body["metadata"]
        known = self._deployments.get((metadata["namespace"], metadata["name"]))
        return known is not None and _is_same(body, known) and _age(known) == _age(body) > 0

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
        if deleted:
            self.drop_deployment(key)
        _apply(self._objects.setdefault(key, {}), kind, body, deleted)
        if key in self._events:
            self._events[key].append((kind, body, deleted))
        return key

    def begin_listing(self, key: Key) -> None:
        """Keep the events of a deployment's children from now on, for `replace`."""
        self._events[key] = []

    def replace(self, key: Key, listed: Iterable[Object]) -> None:
        """Replace a deployment's children by a complete listing and the events since `begin_listing`.

        Kinds are listed one after another: an event may be newer than the listing of its kind.
        """
        objects: dict[Place, Object] = {}
        for item in listed:
            _apply(objects, str(item["kind"]), item, deleted=False)
        for event in self._events.pop(key, []):
            _apply(objects, *event)
        self._objects[key] = objects

    def children(self, key: Key) -> tuple[Object, ...]:
        """Return the known children of a deployment."""
        return tuple(self._objects.get(key, {}).values())

    def forget(self, key: Key) -> None:
        """Drop a deleted deployment."""
        self._deployments.pop(key, None)
        self._deleted.pop(key, None)
        self._objects.pop(key, None)
        self._events.pop(key, None)


def _apply(objects: dict[Place, Object], kind: str, body: Object, deleted: bool) -> None:
    """Keep the newer object, as an event may be older than a listing; drop a deleted one, but not its successor."""
    place = (kind, name_of(body))
    known = objects.get(place)
    if deleted:
        if known is not None and _is_same(body, known):
            del objects[place]
    elif known is None or _is_newer(body, known):
        objects[place] = _without_owners({**body, "kind": kind})


def _is_same(body: Object, known: Object) -> bool:
    """Whether two objects of one name are versions of one object, and not an object and its successor."""
    return bool(known["metadata"]["uid"] == body["metadata"]["uid"])


def _is_newer(body: Object, known: Object) -> bool:
    """Whether an object replaces the known one of its name: it is another object, or not older."""
    return not _is_same(body, known) or _age(known) <= _age(body)


def _without_owners(body: Object) -> Object:
    """Return an object without the field owners, which no pass reads: they double the size of a small object."""
    metadata = {field: value for field, value in body["metadata"].items() if field != "managedFields"}
    return {**body, "metadata": metadata}


def _age(body: Object) -> int:
    """Return the resourceVersion as a number: opaque by contract, but a rising integer on every server (KEP-5504)."""
    text = str(body["metadata"].get("resourceVersion", "0"))
    return int(text) if text.isdecimal() else 0
