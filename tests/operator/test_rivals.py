"""Two OrcaDeployments of one namespace that want the same Service: `d-control`, and `d` for its pods."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from orca_operator import names, reconcile
from orca_operator.actions import Apply, ApplyAutoscaler
from orca_operator.conditions import find_condition
from orca_operator.manifests.tls import ROLES
from orca_operator.master_client import MasterClient
from orca_operator.metrics import Metrics
from orca_operator.observe import Observed, label, owner
from orca_operator.plan import plan
from orca_operator.reconcile import Reconciler
from orca_operator.rotation import CA
from support.api_server import Api
from support.orcadeployments import IMAGES, MINIMAL, context, merged, view

SPEC = merged(MINIMAL, tls={"mode": "off"})


class Half(Api):
    """The view that one of several OrcaDeployments has of a shared API server."""

    def __init__(self, name: str, created: str, others: dict[str, Half]) -> None:
        super().__init__(SPEC)
        assert self.resource is not None
        metadata = {**self.resource["metadata"], "name": name, "uid": f"uid of {name}", "creationTimestamp": created}
        self.resource = {**self.resource, "metadata": metadata}
        self.objects = next(iter(others.values())).objects if others else self.objects
        self._others = others
        others[name] = self
        self.reconciler = Reconciler(self, IMAGES, MasterClient(), Metrics())  # type: ignore[arg-type]

    def get(self, kind: str, namespace: str, name: str) -> dict[str, Any] | None:
        if kind == names.KIND:
            return self._others[name].resource if name in self._others else None
        return super().get(kind, namespace, name)

    def children(self, kind: str, namespace: str, deployment: str) -> list[dict[str, Any]]:
        found = super().children(kind, namespace, deployment)
        return [child for child in found if label(child, names.DEPLOYMENT_LABEL) == deployment]


class Pair:
    """`d` and `d-control`, in the order of their creation, and the passes over them."""

    def __init__(self, first: str, second: str) -> None:
        self.halves: dict[str, Half] = {}
        for name, created in ((first, "2026-01-01T12:00:00Z"), (second, "2026-01-01T12:00:01Z")):
            Half(name, created, self.halves)
        self.objects = self.halves[first].objects

    def run(self, *deployments: str) -> None:
        async def passes() -> None:
            for name in deployments:
                reconciler = self.halves[name].reconciler
                assert reconciler is not None
                await reconciler.run_pass(("default", name))

        asyncio.run(asyncio.wait_for(passes(), 60))

    def ready(self, name: str) -> tuple[str, str]:
        """Return reason and message of `Ready`."""
        condition = find_condition((self.halves[name].resource or {}).get("status", {}), "Ready")
        return condition.get("reason", ""), condition.get("message", "")

    def owners(self, deployment: str) -> set[str]:
        """Return the owners of the Services that a deployment needs."""
        services = (deployment, names.control(deployment))
        return {str(owner(self.objects["Service", name]).get("name")) for name in services}


ORDERS = pytest.mark.parametrize(("first", "second"), [("d", "d-control"), ("d-control", "d")])


@pytest.fixture(autouse=True)
def listings(monkeypatch: pytest.MonkeyPatch) -> None:
    """List the children in each pass: a half sees the changes of the other one."""
    monkeypatch.setattr(reconcile, "RELIST_SECONDS", -1.0)


@ORDERS
def test_the_second_one_says_so_and_writes_nothing(first, second):
    pair = Pair(first, second)
    pair.run(first, second, first, second)
    assert pair.owners(first) == {first}
    assert pair.ready(first)[0] != "InvalidSpec"
    reason, message = pair.ready(second)
    assert reason == "InvalidSpec"
    assert message == (
        f"metadata.name: the OrcaDeployment {first}, which is older, needs the Service d-control, too: "
        "choose another name"
    )
    assert {label(made, names.DEPLOYMENT_LABEL) for made in pair.objects.values()} == {first}


@ORDERS
def test_the_second_one_does_not_take_a_service_that_the_first_one_misses(first, second):
    pair = Pair(first, second)
    pair.run(first)
    pair.halves[first].remove("Service", "d-control")
    pair.run(second, first)
    assert pair.owners(first) == {first}
    assert pair.ready(first)[0] != "InvalidSpec"
    assert pair.ready(second)[0] == "InvalidSpec"


@ORDERS
def test_the_pass_that_comes_first_does_not_decide(first, second):
    pair = Pair(first, second)
    pair.run(second, first)
    assert pair.owners(first) == {first}
    assert pair.ready(second)[0] == "InvalidSpec"


@ORDERS
def test_the_second_one_starts_once_the_first_one_is_gone(first, second):
    pair = Pair(first, second)
    pair.run(first, second)
    pair.halves.pop(first)
    for kind, name in list(pair.objects):
        pair.halves[second].remove(kind, name)
    pair.run(second)
    assert pair.owners(second) == {second}
    assert pair.ready(second)[0] != "InvalidSpec"


@ORDERS
def test_the_second_one_keeps_a_service_that_it_has_already(first, second):
    """An operator of an earlier version let it take the Service: what serves must not stop."""
    pair = Pair(first, second)
    both = dict(pair.halves)
    pair.halves.pop(first)
    pair.run(second)
    pair.halves |= both
    pair.run(first, second)
    assert pair.owners(second) == {second}
    assert pair.ready(second)[0] != "InvalidSpec"
    assert pair.ready(first) == (
        "InvalidSpec",
        f"metadata.name: a Service named d-control exists and is the OrcaDeployment {second}'s: choose another name",
    )


def made_by(name: str) -> set[tuple[str, str]]:
    """Return kind and name of each object that an OrcaDeployment may have, of one revision."""
    issued = {"mode": "certManager", "issuerRef": {"name": "ours"}}
    spec = merged(
        MINIMAL, replicas=2, parallelism={"pipelineParallelSize": 2}, tls=issued, autoscaling={"maxReplicas": 4},
        podDisruptionBudget={"enabled": True}, monitoring={"enabled": True},
    )  # fmt: skip
    made = {
        (action.manifest["kind"], action.manifest["metadata"]["name"])
        for action in plan(context(spec, name), view(Observed()))
        if isinstance(action, Apply | ApplyAutoscaler)
    }
    secrets = {names.own_secret(name, part) for part in (CA, *ROLES)} | {names.admin(name)}
    secrets |= {names.issued(name, role) for role in (*ROLES, names.OPERATOR)}
    return made | {("Secret", secret) for secret in secrets} | {("ScaledObject", name)}


def test_no_other_names_of_two_deployments_meet():
    """The name of each object of `d` as the name of an OrcaDeployment of its own."""
    mine = made_by("d")
    others = {name for _, name in mine} - {"d"}
    assert len(others) >= 15
    for other in others:
        shared = mine & made_by(other)
        assert shared == ({("Service", "d-control")} if other == "d-control" else set())
        assert (other in names.rivals("d")) == bool(shared)
