"""`KubernetesApi`: an API server over HTTP, for the operator's clients, kopf and `kubernetes`.

Discovery, objects and watches of a few kinds, without validation. Lists and watches obey a label selector of one term.
`versions` has the kinds that discovery lists, with their versions. `requests` has every request's method, path and
query, `bodies` the bodies; a write gets its own body as the answer and changes nothing. `answers` replaces status and
body of a path.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from aiohttp import web
from orca_operator.cluster import API_VERSIONS
from orca_operator.names import KIND, PLURAL


def plural(kind: str) -> str:
    """Return the name of a kind in Kubernetes' paths."""
    if kind == KIND:
        return PLURAL
    return f"{kind[:-1]}ies" if kind.endswith("y") else f"{kind.lower()}s"


def selects(selector: str, body: dict[str, Any]) -> bool:
    """Whether a label selector of one term, `KEY` or `KEY=VALUE`, selects an object; "" selects all."""
    key, has_value, value = selector.partition("=")
    labels = body["metadata"].get("labels") or {}
    return not key or (key in labels and (not has_value or labels[key] == value))


BACKBONE = {"Namespace": "v1", "CustomResourceDefinition": "apiextensions.k8s.io/v1"}
"""Kinds that kopf requires at startup."""


class KubernetesApi:
    """Serves `kinds` from a thread, at `url`."""

    def __init__(self, kinds: tuple[str, ...]) -> None:
        self.kinds = kinds
        self.versions = {kind: API_VERSIONS[kind] for kind in kinds} | BACKBONE
        self.requests: list[tuple[str, str, dict[str, str]]] = []
        self.bodies: list[Any] = []
        self.answers: dict[str, tuple[int, Any]] = {}
        self.objects: dict[str, dict[str, dict[str, Any]]] = {kind: {} for kind in kinds}
        self.url = ""
        self._watches: dict[str, list[asyncio.Queue[dict[str, Any] | None]]] = {kind: [] for kind in kinds}
        self._version = 0
        self._loop = asyncio.new_event_loop()

    def put(self, kind: str, body: dict[str, Any], event: str = "MODIFIED") -> None:
        """Store an object and notify the watches; DELETED removes the object."""

        def store() -> None:
            self._version += 1
            name = body["metadata"]["name"]
            metadata = {"uid": f"uid-{name}", **body["metadata"], "resourceVersion": str(self._version)}
            stored = {"apiVersion": API_VERSIONS[kind], "kind": kind, **body, "metadata": metadata}
            self.objects[kind][name] = stored
            if event == "DELETED":
                del self.objects[kind][name]
            for queue in self._watches[kind]:
                queue.put_nowait({"type": event, "object": stored})

        self._loop.call_soon_threadsafe(store)

    def writes(self) -> list[tuple[str, str]]:
        """Return method and path of every request other than GET."""
        return [(method, path) for method, path, _ in self.requests if method != "GET"]

    @contextlib.contextmanager
    def serve(self, folder: Path) -> Iterator[Path]:
        """Serve until the context ends; yield a kubeconfig for the server."""
        started, stop = threading.Event(), asyncio.Event()

        async def run() -> None:
            app = web.Application()
            app.router.add_route("*", "/{path:.*}", self._answer)
            runner = web.AppRunner(app, shutdown_timeout=1)
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
            started.set()
            await stop.wait()
            for queue in (queue for queues in self._watches.values() for queue in queues):
                queue.put_nowait(None)
            await runner.cleanup()

        thread = threading.Thread(target=lambda: self._loop.run_until_complete(run()))
        thread.start()
        try:
            assert started.wait(60)
            yield self._kubeconfig(folder)
        finally:
            self._loop.call_soon_threadsafe(stop.set)
            thread.join(60)
            self._loop.close()

    def _kubeconfig(self, folder: Path) -> Path:
        named = {"name": "test"}
        path = folder / "kubeconfig"
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "clusters": [named | {"cluster": {"server": self.url}}],
            "users": [named | {"user": {"token": "secret"}}],
            "contexts": [named | {"context": {"cluster": "test", "user": "test"}}],
        }
        path.write_text(yaml.safe_dump(content))
        return path

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        path = f"/{request.match_info['path']}"
        self.requests.append((request.method, path, dict(request.query)))
        self.bodies.append(json.loads(text) if (text := await request.text()) else None)
        if path in self.answers:
            status, body = self.answers[path]
            return web.json_response(body, status=status)
        parts = path.strip("/").split("/")
        if path == "/version":
            return web.json_response({"major": "1", "minor": "30", "gitVersion": "v1.30.0"})
        if path == "/api":
            return web.json_response({"kind": "APIVersions", "versions": ["v1"]})
        if path == "/apis":
            return web.json_response({"kind": "APIGroupList", "groups": self._groups()})
        depth = 2 if parts[0] == "api" else 3
        version = "/".join(parts[1:depth])
        if len(parts) == depth:
            return web.json_response(
                {"kind": "APIResourceList", "groupVersion": version, "resources": self._resources(version)}
            )
        return await self._objects(request, version, parts[depth:])

    def _groups(self) -> list[dict[str, Any]]:
        versions = sorted({version for version in self.versions.values() if "/" in version})
        entries = [{"groupVersion": version, "version": version.partition("/")[2]} for version in versions]
        return [
            {"name": entry["groupVersion"].partition("/")[0], "versions": [entry], "preferredVersion": entry}
            for entry in entries
        ]

    def _resources(self, version: str) -> list[dict[str, Any]]:
        verbs = ["create", "delete", "get", "list", "patch", "watch"]
        entries = []
        for kind, served in self.versions.items():
            if served == version:
                namespaced = kind not in BACKBONE
                entry = {"name": plural(kind).lower(), "singularName": kind.lower(), "namespaced": namespaced}
                entries.append({**entry, "kind": kind, "verbs": verbs})
                entries.append({**entry, "name": f"{entry['name']}/status", "kind": kind, "verbs": ["get", "patch"]})
        return entries

    async def _objects(self, request: web.Request, version: str, parts: list[str]) -> web.StreamResponse:
        """Answer namespaces/NAMESPACE/PLURAL[/NAME[/status]] or PLURAL."""
        parts = parts[2:] if parts[0] == "namespaces" else parts
        kinds = [kind for kind in self.kinds if API_VERSIONS[kind] == version and plural(kind).lower() == parts[0]]
        if not kinds:
            return web.json_response({"message": "the server does not have this resource"}, status=404)
        objects = self.objects[kinds[0]]
        if request.method != "GET":
            return web.json_response({"kind": kinds[0], **(self.bodies[-1] or {})})
        if len(parts) > 1:
            if parts[1] not in objects:
                return web.json_response({"kind": "Status", "message": f"{parts[1]} not found"}, status=404)
            return web.json_response(objects[parts[1]])
        if request.query.get("watch"):
            return await self._watch(request, kinds[0])
        items = [body for body in objects.values() if selects(request.query.get("labelSelector", ""), body)]
        listing = {"kind": f"{kinds[0]}List", "apiVersion": version, "items": items}
        return web.json_response(listing | {"metadata": {"resourceVersion": str(self._version)}})

    async def _watch(self, request: web.Request, kind: str) -> web.StreamResponse:
        response = web.StreamResponse()
        queue: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        for body in self.objects[kind].values():  # stored between the list request and this watch
            if int(body["metadata"]["resourceVersion"]) > int(request.query.get("resourceVersion", 0)):
                queue.put_nowait({"type": "ADDED", "object": body})
        self._watches[kind].append(queue)
        await response.prepare(request)
        while (event := await queue.get()) is not None:
            if not selects(request.query.get("labelSelector", ""), event["object"]):
                continue
            await response.write(json.dumps(event).encode() + b"\n")
        return response
