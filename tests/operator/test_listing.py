"""Which kinds that the operator may not list hold a pass up, and how the status names them."""

from __future__ import annotations

import asyncio

import pytest
from orca_operator import reconcile
from orca_operator.cluster import ClusterError
from orca_operator.conditions import find_condition
from orca_operator.listing import list_children
from orca_operator.master_client import MasterClient
from orca_operator.metrics import Metrics
from orca_operator.plan import OPTIONAL
from orca_operator.reconcile import Reconciler
from orca_operator.store import WATCHED
from support.api_server import Api
from support.orcadeployments import IMAGES, MINIMAL, merged

KEY = ("default", "demo")
FORBIDDEN = 'is forbidden: User "orca" cannot list resource'


@pytest.mark.parametrize("kind", OPTIONAL)
def test_the_pass_goes_on_and_the_status_names_the_right(kind, monkeypatch):
    monkeypatch.setattr(reconcile, "RETRY_SECONDS", (1.0, -1.0))

    async def run() -> None:
        api = Api(merged(MINIMAL, replicas=2, tls={"mode": "off"}, podDisruptionBudget={"enabled": True}))
        api.refusals = {f"list {kind}": (403, f"{kind} {FORBIDDEN}")}
        reconciler = api.reconciler = Reconciler(api, IMAGES, MasterClient(), Metrics())  # type: ignore[arg-type]
        for _ in range(2):
            await reconciler.run_pass(KEY)
            assert {"Deployment", "StatefulSet", "PodDisruptionBudget", "NetworkPolicy"} <= api.kinds()
            assert api.resource is not None
            applied = find_condition(api.resource["status"], "FullyApplied")
            message = f"each {kind} that the spec does not need stays: {kind} {FORBIDDEN}"
            assert (applied["status"], applied["reason"], applied["message"]) == ("False", "NotApplied", message)
        api.refusals = {}
        await reconciler.run_pass(KEY)
        assert api.condition("FullyApplied") == ("True", "Applied")
        await reconciler.close()

    asyncio.run(asyncio.wait_for(run(), 60))


@pytest.mark.parametrize("kind", sorted(set(WATCHED) - set(OPTIONAL)))
def test_a_kind_that_the_pass_needs_ends_it(kind):
    api = Api(MINIMAL)
    api.refusals = {f"list {kind}": (403, FORBIDDEN)}
    with pytest.raises(ClusterError, match="cannot list"):
        list_children(api, KEY)  # type: ignore[arg-type]


def test_another_error_is_no_missing_right():
    api = Api(MINIMAL, not_served=("ScaledObject",))
    api.refusals = {"list PodMonitor": (500, "etcd is slow")}
    with pytest.raises(ClusterError, match="etcd is slow"):
        list_children(api, KEY)  # type: ignore[arg-type]
    api.refusals = {}
    assert list_children(api, KEY) == ([], [])  # type: ignore[arg-type]
