"""`Store`: cache of the children of all OrcaDeployments, updated by watches.

An interrupted watch may miss a deletion: a deployment's children are listed again when the deployment is first seen,
and every RELIST_SECONDS after that.
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
        self._objects: dict[Key, dict[tuple[str, str], Object]] = {}

    def update(self, kind: str, body: dict[str, Any], deleted: bool) -> Key | None:
        """Apply one watch event; return the deployment of the object."""
        deployment = deployment_of(body["metadata"])
        if deployment is None:
            return None
        key = (body["metadata"]["namespace"], deployment)
        objects = self._objects.setdefault(key, {})
        if deleted:
            objects.pop((kind, name_of(body)), None)
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
        self._objects.pop(key, None)

    @staticmethod
    def _put(objects: dict[tuple[str, str], Object], body: Object) -> None:
        """Keep the newer object: an event may be older than a listing."""
        place = (str(body["kind"]), name_of(body))
        known = objects.get(place)
        if known is None or known["metadata"]["uid"] != body["metadata"]["uid"] or _age(known) <= _age(body):
            objects[place] = body


def _age(body: Object) -> int:
    """Return the resourceVersion as a number: opaque by contract, but a rising integer on every server (KEP-5504)."""
    text = str(body["metadata"].get("resourceVersion", "0"))
    return int(text) if text.isdecimal() else 0
