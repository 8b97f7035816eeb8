"""Whole passes over an API server that is a dictionary, with scripted masters: certificates from spec to status."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from orca_contract.state import StateReport
from orca_operator import names
from orca_operator.certificates import AUTHORITIES, CERTIFICATE, KEY, issue, make_authority
from orca_operator.master_client import Door, MasterClient, MasterError
from orca_operator.names import KIND
from orca_operator.reconcile import Reconciler
from support.api_server import Api
from support.orcadeployments import IMAGES, MINIMAL, UID, context, everything, merged, pod, report

KEY_OF_DEMO = ("default", "demo")
OWN = names.own_secret("demo", names.MASTER)


class Masters(MasterClient):
    """Answers for the revision that the test names; notes the doors at which the operator knocked."""

    def __init__(self, answer: StateReport | None) -> None:
        super().__init__()
        self.answer = answer
        self.doors: list[Door] = []

    async def state(self, door: Door) -> StateReport:
        self.doors.append(door)
        if self.answer is None:
            raise MasterError("silence")
        return self.answer


async def reconciled(api: Api, masters: Masters, *stages: Callable[[], Any]) -> None:
    """Runs passes; each stage is called until it returns something true."""
    reconciler = Reconciler(api, IMAGES)  # type: ignore[arg-type]
    reconciler._masters = masters
    api.reconciler = reconciler
    try:
        async with asyncio.timeout(60):
            for stage in stages:
                while not stage():
                    reconciler.enqueue(KEY_OF_DEMO)
                    await asyncio.sleep(0.05)
    finally:
        await reconciler.close()


def test_a_new_deployment_has_certificates_before_it_has_pods():
    api = Api(MINIMAL)
    asyncio.run(reconciled(api, Masters(None), lambda: api.condition("TLSReady") == ("True", "MutualTLS")))
    order = [name for kind, name in api.objects if kind in ("Secret", "StatefulSet", "Deployment")]
    assert order[:3] == ["demo-tls-ca", OWN, names.own_secret("demo", names.WORKER)]
    assert {"StatefulSet", "Deployment"} <= api.kinds()


def test_masters_of_old_revisions_are_asked_in_plaintext_and_masters_of_new_ones_by_tls():
    """One revision at a time, as pods say it themselves; a master with certificates is never asked in plaintext."""
    found, doors = context(MINIMAL), []
    for settings in ({"mode": "off"}, {}):
        rendered = context(merged(MINIMAL, tls=settings))
        api = Api(MINIMAL)
        children = everything(type(found)("demo", "default", UID, rendered.spec, found.revision, IMAGES)).children
        for child in children:
            body = {**child, "metadata": {"namespace": "default", **child["metadata"]}}
            if child["kind"] != "Pod":
                api.objects[child["kind"], child["metadata"]["name"]] = body
        master = pod(found, names.MASTER, ready=True)
        deployment = api.objects["Deployment", names.master("demo", found.revision)]
        master["spec"] = deployment["spec"]["template"]["spec"]
        api.objects["Pod", master["metadata"]["name"]] = master
        masters = Masters(report(found))
        expected = ("False", "PlaintextRevision") if settings else ("True", "MutualTLS")
        asyncio.run(reconciled(api, masters, lambda made=api, said=expected: made.condition("TLSReady") == said))
        doors.append(masters.doors[0])
    plain, secured = doors
    assert plain.credentials is None
    assert secured.credentials.server_name == "master.demo.default.orca-serving.io"


def test_a_deployment_waits_for_its_secret_and_goes_on_when_the_secret_is_good():
    api = Api(merged(MINIMAL, tls={"mode": "secret", "secretName": "mine"}))
    now, authority = datetime.now(UTC), make_authority(datetime.now(UTC))
    roles = [names.dns_name(role, "demo", "default") for role in (names.MASTER, names.WORKER, names.OPERATOR)]

    def provide() -> bool:
        assert "StatefulSet" not in api.kinds()
        pair = issue(authority, roles, now)
        data = {CERTIFICATE: pair.certificate, KEY: pair.key, AUTHORITIES: authority.certificate}
        encoded = {key: base64.b64encode(value).decode() for key, value in data.items()}
        api.objects["Secret", "mine"] = {"kind": "Secret", "metadata": {"name": "mine", "uid": "m"}, "data": encoded}
        return True

    asyncio.run(
        reconciled(
            api,
            Masters(None),
            lambda: api.condition("Ready") == ("False", "CertificateNotReady"),
            provide,
            lambda: "StatefulSet" in api.kinds(),
            lambda: api.condition("TLSReady") == ("True", "MutualTLS"),
        )
    )
    assert ("Secret", OWN) not in api.objects, "the operator makes none of its own"


@pytest.mark.parametrize("replicas", [-1, 1])
def test_rotation_goes_on_whatever_the_spec_says(replicas):
    """The annotation asks for a new authority; an invalid edit of the spec does not hold that up."""
    api = Api(MINIMAL)

    def edit() -> bool:
        metadata = api.resource["metadata"] | {"annotations": {names.ROTATE_ANNOTATION: "now"}}
        api.resource = {**api.resource, "metadata": metadata, "spec": merged(MINIMAL, replicas=replicas)}
        return True

    asyncio.run(
        reconciled(
            api,
            Masters(None),
            lambda: api.condition("TLSReady") == ("True", "MutualTLS"),
            edit,
            lambda: base64.b64decode(api.objects["Secret", OWN]["data"][AUTHORITIES]).count(b"BEGIN") == 2,
        )
    )


def test_a_deployment_that_comes_back_while_its_connections_are_closed_is_reconciled():
    """The event of its creation comes while the task of its predecessor ends; no other event follows."""
    api, resources = Api(MINIMAL), []

    class Closing(Masters):
        async def forget(self, server_name: str) -> None:
            if resources:
                api.resource = resources.pop()
                api.reconciler.enqueue(KEY_OF_DEMO)
                for _ in range(3):
                    await asyncio.sleep(0)

    async def run() -> None:
        reconciler = api.reconciler = Reconciler(api, IMAGES)  # type: ignore[arg-type]
        reconciler._masters = Closing(None)
        try:
            async with asyncio.timeout(60):
                reconciler.enqueue(KEY_OF_DEMO)
                while not api.statuses:
                    await asyncio.sleep(0.01)
                api.statuses.clear()
                metadata = {**api.resource["metadata"], "uid": "another"}
                resources.append({"kind": KIND, "metadata": metadata, "spec": MINIMAL})
                api.objects.clear()
                api.resource = None
                reconciler.enqueue(KEY_OF_DEMO)
                while not api.statuses:
                    await asyncio.sleep(0.01)
        finally:
            await reconciler.close()

    asyncio.run(run())
    assert api.condition("TLSReady")[0]
