"""`Api`: an API server that is a dictionary, for whole passes of a Reconciler in one process."""

from __future__ import annotations

import base64
from typing import Any

from orca_operator.conditions import find_condition
from orca_operator.names import KIND
from orca_operator.reconcile import Reconciler

from support.orcadeployments import UID


class Api:
    """Objects by kind and name; what is written reaches the reconciler's store at once, as a watch would."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self.objects: dict[tuple[str, str], dict[str, Any]] = {}
        metadata = {"name": "demo", "namespace": "default", "uid": UID, "generation": 1}
        self.resource: dict[str, Any] = {"kind": KIND, "metadata": metadata, "spec": spec}
        self.reconciler: Reconciler | None = None
        self.statuses: list[dict[str, Any]] = []

    def get(self, kind: str, namespace: str, name: str) -> dict[str, Any] | None:
        return self.resource if kind == KIND else self.objects.get((kind, name))

    def children(self, kind: str, namespace: str, deployment: str) -> list[dict[str, Any]]:
        return [found for (of, _), found in self.objects.items() if of == kind != "Secret"]

    def apply(self, manifest: dict[str, Any]) -> dict[str, Any]:
        key = (manifest["kind"], manifest["metadata"]["name"])
        before = self.objects.get(key, {"metadata": {"generation": 0}})
        metadata = {**manifest["metadata"], "uid": "x", "generation": before["metadata"].get("generation", 0) + 1}
        self.put({**manifest, "metadata": metadata})
        return self.objects[key]

    def put(self, body: dict[str, Any]) -> None:
        self.objects[body["kind"], body["metadata"]["name"]] = body
        if self.reconciler is not None and body["kind"] != "Secret":
            self.reconciler.store.update(body["kind"], body, deleted=False)

    def create(self, manifest: dict[str, Any]) -> dict[str, Any]:
        data = {key: base64.b64encode(value.encode()).decode() for key, value in manifest.get("stringData", {}).items()}
        if manifest["kind"] != "Event":
            self.put({**manifest, "data": data, "metadata": {**manifest["metadata"], "uid": "x"}})
        return manifest

    def delete(self, kind: str, namespace: str, name: str, uid: str) -> None:
        body = self.objects.pop((kind, name))
        if self.reconciler is not None:
            self.reconciler.store.update(kind, body, deleted=True)

    def patch_status(self, namespace: str, name: str, status: dict[str, Any]) -> None:
        self.resource = {**self.resource, "status": status}
        self.statuses.append(status)

    def condition(self, kind: str) -> tuple[str, str]:
        found = find_condition(self.resource.get("status", {}), kind)
        return found.get("status", ""), found.get("reason", "")

    def kinds(self) -> set[str]:
        return {kind for kind, _ in self.objects}
