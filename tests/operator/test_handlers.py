"""kopf's watches over HTTP, against an API server of this process: which events become which keys, and no writes."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp
import kopf
import pytest
from kopf._core.intents.causes import Activity
from kubernetes import client
from orca_operator import handlers, names
from orca_operator.handlers import HUNG_SECONDS, Backoffs, configure, make_registry
from orca_operator.names import KIND
from orca_operator.store import WATCHED, Store
from support.kubernetes_api import KubernetesApi, plural

KINDS = (KIND, *(kind for kind in WATCHED if kind not in ("PodMonitor", "Certificate")))
"""Of a cluster without the operators of Prometheus and cert-manager."""


class Queue:
    """A reconciler's side that handlers use; notes the keys."""

    def __init__(self) -> None:
        self.store = Store()
        self.keys: list[tuple[str, str]] = []
        self.passes: dict[tuple[str, str], float] = {}
        self.closed = False

    def enqueue(self, key: tuple[str, str]) -> None:
        self.keys.append(key)

    def due(self) -> dict[tuple[str, str], float]:
        return self.passes

    def hung(self, limit: float) -> dict[tuple[str, str], float]:
        return {key: seconds for key, seconds in self.passes.items() if seconds > limit}

    async def close(self) -> None:
        self.closed = True


def child(kind: str, name: str, deployment: str = "demo") -> dict[str, Any]:
    metadata = {"name": name, "namespace": "default", "labels": names.labels(deployment)}
    return {"kind": kind, "metadata": metadata}


@contextlib.asynccontextmanager
async def operator(
    queue: Queue, namespaces: tuple[str, ...] = ("default",), liveness: str | None = None
) -> AsyncIterator[None]:
    """kopf around the handlers, ended as by a signal; without `namespaces` it watches the whole cluster."""
    stop, ready = asyncio.Event(), asyncio.Event()
    task = asyncio.create_task(
        kopf.operator(
            registry=make_registry(queue),  # type: ignore[arg-type]
            namespaces=namespaces,
            clusterwide=not namespaces,
            standalone=True,
            liveness_endpoint=liveness,
            stop_flag=stop,
            ready_flag=ready,
        )
    )
    try:
        await asyncio.wait_for(ready.wait(), 60)
        yield
    finally:
        stop.set()
        await asyncio.wait_for(task, 60)


async def until(holds: Callable[[], Any]) -> None:
    async with asyncio.timeout(60):
        while not holds():
            await asyncio.sleep(0.02)


@pytest.fixture
def api(tmp_path: Path, monkeypatch):
    server = KubernetesApi(KINDS)
    with server.serve(tmp_path) as kubeconfig:
        monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(kubeconfig))
        monkeypatch.setattr(client.Configuration, "_default", None)
        yield server


def test_events_become_keys_and_children_and_nothing_is_written(api):
    queue = Queue()
    deployment = {"kind": KIND, "metadata": {"name": "demo", "namespace": "default"}, "spec": {}}
    stranger = {"kind": "Pod", "metadata": {"name": "stranger", "namespace": "default"}}

    async def run() -> None:
        api.put("Service", child("Service", "earlier"))
        async with operator(queue):
            await until(lambda: ("default", "demo") in queue.keys)  # what was there before
            assert queue.store.deployment(("default", "demo")) is None
            assert names_of(queue) == {"earlier"}
            queue.keys.clear()

            api.put(KIND, deployment, "ADDED")
            await until(lambda: queue.keys == [("default", "demo")])
            known = queue.store.deployment(("default", "demo"))
            assert known is not None
            assert known["spec"] == deployment["spec"]
            api.put(KIND, deployment, "DELETED")
            await until(lambda: queue.keys == [("default", "demo")] * 2)
            assert queue.store.deployment(("default", "demo")) is None
            assert names_of(queue) == {"earlier"}, "an OrcaDeployment is no child"

            api.put("Pod", stranger, "ADDED")
            for kind in KINDS[1:]:
                api.put(kind, child(kind, kind.lower(), "other"), "ADDED")
            await until(lambda: len(queue.store.children(("default", "other"))) == len(KINDS) - 1)
            assert set(queue.keys[2:]) == {("default", "other")}
            assert {found["kind"] for found in queue.store.children(("default", "other"))} == set(KINDS[1:])

            api.put("Pod", child("Pod", "pod", "other"), "DELETED")
            await until(lambda: "Pod" not in {found["kind"] for found in queue.store.children(("default", "other"))})
        assert queue.closed

    asyncio.run(run())
    assert api.writes() == [], "no finalizer, no annotation, no Event of kopf's own"
    watches = [query for _, _, query in api.requests if query.get("watch")]
    assert len(watches) >= len(KINDS)
    assert all(float(query["timeoutSeconds"]) <= 300 for query in watches), "no watch waits for ever"


@pytest.mark.parametrize("namespaces", [("default",), ()], ids=["namespace", "cluster"])
def test_every_list_and_watch_of_children_selects_them_by_label(api, namespaces):
    """The API server leaves out the Pods and ConfigMaps of others; OrcaDeployments are all the operator's own."""
    queue = Queue()

    def selectors(watch: bool) -> dict[str, str | None]:
        """Return the label selector by path of every list, or of every watch."""
        return {
            path: query.get("labelSelector")
            for method, path, query in api.requests
            if method == "GET" and path.split("/")[-1] in plurals and bool(query.get("watch")) == watch
        }

    plurals = {plural(kind).lower(): kind for kind in KINDS}

    async def run() -> None:
        async with operator(queue, namespaces):
            await until(lambda: len(selectors(watch=True)) == len(KINDS))

    asyncio.run(run())
    for watch in (False, True):
        asked = selectors(watch)
        assert {plurals[path.split("/")[-1]] for path in asked} == set(KINDS)
        assert all(("/namespaces/default/" in path) == bool(namespaces) for path in asked)
        for path, selector in asked.items():
            kind = plurals[path.split("/")[-1]]
            assert selector == (None if kind == KIND else names.DEPLOYMENT_LABEL), path


def test_the_selector_is_set_for_every_watched_kind():
    """Also for those that this API server does not serve."""
    settings = kopf.OperatorSettings()
    configure(settings)
    assert {selector.any_name for selector in settings.watching.label_selectors} == {kind.lower() for kind in WATCHED}
    assert set(settings.watching.label_selectors.values()) == {names.DEPLOYMENT_LABEL}


@pytest.mark.parametrize("status", [403, 503])
def test_a_namespace_that_cannot_be_listed_ends_nothing_and_is_watched_again(api, monkeypatch, status):
    """As while the namespace or its RoleBinding is deleted, or while the API server has no storage."""
    monkeypatch.setattr(handlers, "BACKOFFS", Backoffs((0.05,), 0.05))
    queue = Queue()
    path = f"/apis/{names.API_VERSION}/namespaces/b/{names.PLURAL}"
    api.answers[path] = (status, {"kind": "Status", "message": "no, because", "code": status})

    def asked(watch: bool) -> int:
        return [bool(query.get("watch")) for _, asked, query in api.requests if asked == path].count(watch)

    async def run() -> None:
        async with operator(queue, ("a", "b")):
            await until(lambda: asked(watch=False) > 20)  # more than kopf's own nine attempts
            api.put(KIND, {"kind": KIND, "metadata": {"name": "one", "namespace": "a"}, "spec": {}}, "ADDED")
            await until(lambda: queue.keys == [("a", "one")])
            assert not asked(watch=True)
            del api.answers[path]
            await until(lambda: asked(watch=True))

    asyncio.run(run())
    assert queue.closed


def names_of(queue: Queue) -> set[str]:
    return {found["metadata"]["name"] for found in queue.store.children(("default", "demo"))}


@pytest.mark.long
def test_the_liveness_probe_fails_while_a_pass_hangs(api):
    """Over HTTP, as a kubelet asks; the log has the name of the OrcaDeployment."""
    queue, statuses = Queue(), []
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    async def ask() -> int:
        with contextlib.suppress(aiohttp.ClientConnectorError):  # kopf is ready before it listens
            return await answer()
        await asyncio.sleep(0.02)
        return await ask()

    async def answer() -> int:
        async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}/healthz") as response:
            return response.status

    async def run() -> None:
        async with operator(queue, liveness=f"http://127.0.0.1:{port}/healthz"):
            for seconds in (HUNG_SECONDS + 1, HUNG_SECONDS - 60):
                queue.passes = {("default", "quick"): 0.1, ("default", "demo"): seconds}
                statuses.append(await asyncio.wait_for(ask(), 60))

    asyncio.run(run())
    assert statuses == [500, 200]


def test_the_event_of_a_known_version_requests_no_pass():
    """The operator's own write of the status returns the version of which an event comes."""
    queue = Queue()
    handler = make_registry(queue)._watching._handlers[0].fn  # type: ignore[arg-type]
    body = {"kind": KIND, "metadata": {"name": "demo", "namespace": "default", "uid": "u", "resourceVersion": "5"}}
    queue.store.update_deployment(body, deleted=False)
    for kind, version in (("MODIFIED", "5"), ("MODIFIED", "6"), (None, "6"), ("DELETED", "6")):
        metadata = {**body["metadata"], "resourceVersion": version}
        asyncio.run(handler(event={"type": kind}, body={**body, "metadata": metadata}))
    assert queue.keys == [("default", "demo")] * 2, "the newer version and the deletion"


def test_the_probe_names_the_deployment_whose_pass_hangs():
    queue = Queue()
    (probe,) = make_registry(queue)._activities.get_handlers(activity=Activity.PROBE)  # type: ignore[arg-type]
    assert asyncio.run(probe.fn()) == 0
    queue.passes = {("default", "quick"): 0.1, ("default", "demo"): 301.0}
    with pytest.raises(kopf.PermanentError, match="default/demo: nothing in a pass has ended for 301 s"):
        asyncio.run(probe.fn())


def test_everything_that_waits_is_bounded_and_kopf_posts_no_events():
    settings = kopf.OperatorSettings()
    configure(settings)
    assert settings.watching.server_timeout < settings.watching.client_timeout <= 330
    assert settings.watching.connect_timeout <= 10
    assert 60 < settings.watching.inactivity_timeout <= 120, "the API server sends a bookmark every minute"
    assert settings.networking.request_timeout <= 30
    waits = list(itertools.islice(iter(settings.networking.error_backoffs), 1000))  # type: ignore[arg-type]
    assert (waits[0], len(waits), max(waits)) == (1, 1000, 30), "the attempts have no end"
    assert settings.posting.enabled is False
    assert settings.scanning.disabled is True, "a Role of a namespace may not list CustomResourceDefinitions"
