"""kopf handlers: put the keys of watch events into the reconciler's queue, without finalizers or annotations."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import kopf

from orca_operator import names
from orca_operator.cluster import API_VERSIONS
from orca_operator.reconcile import Reconciler
from orca_operator.store import WATCHED

HUNG_SECONDS = 300.0
"""The liveness probe fails when nothing in a pass has ended for longer (`Reconciler.hung`): each wait is shorter."""


@dataclass(frozen=True, slots=True)
class Backoffs:
    """Seconds between the attempts of a request of kopf, without an end: after a last attempt kopf ends the operator.

    403 is the answer in a namespace that is deleted, 5xx that of an API server that starts: both end without a restart.
    """

    first: tuple[float, ...]
    last: float

    def __iter__(self) -> Iterator[float]:
        return itertools.chain(self.first, itertools.repeat(self.last))


BACKOFFS = Backoffs((1, 2, 5, 15), 30)


def make_registry(reconciler: Reconciler) -> kopf.OperatorRegistry:
    """Return the kopf handlers of one reconciler."""
    registry = kopf.OperatorRegistry()

    @kopf.on.login(registry=registry)
    def login(**arguments: Any) -> kopf.ConnectionInfo | None:
        return kopf.login_via_client(**arguments)  # uses the configuration of cluster.connect

    @kopf.on.startup(registry=registry)
    async def start(settings: kopf.OperatorSettings, **_: Any) -> None:
        configure(settings)

    @kopf.on.cleanup(registry=registry)
    async def stop(**_: Any) -> None:
        await reconciler.close()

    @kopf.on.probe(id="longestPassSeconds", registry=registry)
    async def alive(**_: Any) -> float:
        for key, seconds in reconciler.hung(HUNG_SECONDS).items():
            raise kopf.PermanentError("{}/{}: nothing in a pass has ended for {:.0f} s".format(*key, seconds))
        return max(reconciler.due().values(), default=0.0)

    @kopf.on.event(names.GROUP, names.VERSION, names.PLURAL, registry=registry)
    async def deployment(event: Any, body: Any, **_: Any) -> None:
        resource, deleted = _plain(body), event["type"] == "DELETED"
        if deleted or not reconciler.store.has(resource):
            reconciler.enqueue(reconciler.store.update_deployment(resource, deleted))

    for kind in WATCHED:
        _watch(registry, reconciler, kind)
    return registry


def _watch(registry: kopf.OperatorRegistry, reconciler: Reconciler, kind: str) -> None:
    group, _, version = API_VERSIONS[kind].rpartition("/")

    async def child(event: Any, body: Any, **_: Any) -> None:
        key = reconciler.store.update(kind, _plain(body), event["type"] == "DELETED")
        if key is not None:
            reconciler.enqueue(key)

    kopf.on.event(group, version, kind.lower(), registry=registry, id=kind)(child)


def _plain(body: Any) -> dict[str, Any]:
    """Copy kopf's read-only view into a dictionary."""
    return {key: body[key] for key in body}


def configure(settings: kopf.OperatorSettings) -> None:
    """Bound every wait, keep kopf from writing to the cluster, and have the API server select the children.

    The labels of a kopf handler would filter objects only after the API server has sent all of the cluster.
    """
    for kind in WATCHED:
        group, _, version = API_VERSIONS[kind].rpartition("/")
        settings.watching.label_selectors[group, version, kind.lower()] = names.DEPLOYMENT_LABEL
    settings.watching.server_timeout = 300
    settings.watching.client_timeout = 330
    settings.watching.connect_timeout = 10
    settings.watching.inactivity_timeout = 90  # the API server sends a bookmark every minute; then kopf connects anew
    settings.networking.request_timeout = 30
    settings.networking.error_backoffs = BACKOFFS
    settings.posting.enabled = False
    settings.scanning.disabled = True
