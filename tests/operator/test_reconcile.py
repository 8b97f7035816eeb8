"""Passes over an API server in memory: the scenarios of tests/operator/scenarios, certificates, the queue of keys.

A scenario is a folder: scenario.yaml tells what happens (support/scenario.py), expected.yaml what each pass does.
`pytest tests/operator --update-golden` writes every expected.yaml anew.
"""

from __future__ import annotations

import asyncio
import base64
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from orca_contract.state import StateReport
from orca_operator import names, reconcile
from orca_operator.certificates import AUTHORITIES, CERTIFICATE, KEY, issue, make_authority
from orca_operator.cluster import ClusterError
from orca_operator.master_client import Door, MasterClient, MasterError
from orca_operator.metrics import Metrics
from orca_operator.names import KIND
from orca_operator.reconcile import Reconciler
from support.api_server import Api
from support.orcadeployments import IMAGES, MINIMAL, UID, context, everything, merged, pod, report
from support.scenario import Player, Scenario

SCENARIOS = sorted(path for path in (Path(__file__).parent / "scenarios").iterdir() if path.is_dir())
KEY_OF_DEMO = ("default", "demo")
HEADER = """
# Written by `pytest tests/operator --update-golden`. An entry is one pass: what the operator wrote, and what differs
# from the pass before in children and status (null: gone). Conditions count seconds since the beginning.
"""
OWN = names.own_secret("demo", names.MASTER)


# -- scenarios ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("folder", SCENARIOS, ids=lambda folder: folder.name)
def test_scenario(folder, golden):
    scenario = Scenario.read(folder)
    played = f"# {scenario.about}{HEADER}{asyncio.run(asyncio.wait_for(Player(scenario).play(), 60))}"
    golden(folder / "expected.yaml", played)


# -- certificates ------------------------------------------------------------------------------------------------------


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
    """Run passes; each stage is called until it returns something true."""
    reconciler = Reconciler(api, IMAGES, masters, Metrics())  # type: ignore[arg-type]
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
        reconciler = api.reconciler = Reconciler(api, IMAGES, Closing(None), Metrics())  # type: ignore[arg-type]
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


# -- the queue of keys -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ClusterError(503, "etcd is down"), "default/demo: etcd is down; next pass in 0 s"),
        (ValueError("a defect"), "default/demo: unexpected error; next pass in 0 s"),
    ],
    ids=["API server", "defect"],
)
def test_a_pass_that_fails_is_logged_and_tried_again(error, line, caplog, monkeypatch):
    monkeypatch.setattr(reconcile, "RETRY_SECONDS", (0.01, 0.02))
    failures = [error] * 3

    class Failing(Api):
        def get(self, kind: str, namespace: str, name: str) -> dict[str, Any] | None:
            if failures and kind == KIND:
                raise failures.pop()
            return super().get(kind, namespace, name)

    async def run() -> None:
        api = Failing(merged(MINIMAL, tls={"mode": "off"}))
        reconciler = api.reconciler = Reconciler(api, IMAGES, Masters(None), Metrics())  # type: ignore[arg-type]
        reconciler.enqueue(KEY_OF_DEMO)  # once: what follows is the reconciler's own doing
        while api.condition("FullyApplied") != ("True", "Applied"):
            await asyncio.sleep(0.01)
        await reconciler.close()

    asyncio.run(asyncio.wait_for(run(), 60))
    assert [record.getMessage() for record in caplog.records if "next pass" in record.getMessage()] == [line] * 3


def test_a_failure_of_an_earlier_deployment_is_not_written_to_its_successor():
    """The successor of its name can be created while a pass over the earlier one fails."""

    class Failing(Api):
        num_failures = 0

        def create(self, manifest: dict[str, Any]) -> dict[str, Any]:
            self.num_failures += 1
            if self.num_failures == 2:  # the first is not named
                assert self.resource is not None
                successor = {**self.resource, "metadata": {**self.resource["metadata"], "uid": "another"}}
                assert self.reconciler is not None
                self.reconciler.store.update_deployment(successor, deleted=False)
            raise ClusterError(503, "etcd is down")

    async def run() -> None:
        api = Failing(merged(MINIMAL, tls={"mode": "off"}))
        reconciler = api.reconciler = Reconciler(api, IMAGES, Masters(None), Metrics())  # type: ignore[arg-type]
        for _ in range(2):
            with pytest.raises(ClusterError, match="etcd is down"):
                await reconciler.run_pass(KEY_OF_DEMO)
        assert (api.num_failures, api.statuses) == (2, [])
        await reconciler.close()

    asyncio.run(asyncio.wait_for(run(), 60))


def test_a_restarted_operator_that_may_not_list_a_kind_says_so():
    """No pass gets further than the list: without that, the status would stay as the earlier operator left it."""

    async def run() -> None:
        api = Api(merged(MINIMAL, tls={"mode": "off"}))
        api.refusals = {"list StatefulSet": (403, "statefulsets is forbidden")}
        reconciler = api.reconciler = Reconciler(api, IMAGES, Masters(None), Metrics())  # type: ignore[arg-type]
        for _ in range(2):
            with pytest.raises(ClusterError, match="statefulsets is forbidden"):
                await reconciler.run_pass(KEY_OF_DEMO)
        assert api.condition("FullyApplied") == ("False", "NotApplied")
        await reconciler.close()

    asyncio.run(asyncio.wait_for(run(), 60))


def test_one_deployment_that_hangs_holds_no_other_up():
    """Each has a task of its own, and calls to the API server run in threads."""
    released = threading.Event()

    class Hanging(Api):
        def get(self, kind: str, namespace: str, name: str) -> dict[str, Any] | None:
            if name == "hanging":
                assert released.wait(60)
                return None
            return super().get(kind, namespace, name)

    async def run() -> None:
        api = Hanging(merged(MINIMAL, tls={"mode": "off"}))
        reconciler = api.reconciler = Reconciler(api, IMAGES, Masters(None), Metrics())  # type: ignore[arg-type]
        try:
            reconciler.enqueue(("default", "hanging"))
            await asyncio.sleep(0)
            reconciler.enqueue(KEY_OF_DEMO)
            while not api.statuses:
                await asyncio.sleep(0.01)
        finally:
            released.set()
            await reconciler.close()

    asyncio.run(asyncio.wait_for(run(), 60))


def test_a_deployment_that_is_gone_leaves_nothing_behind():
    async def run() -> None:
        api = Api(merged(MINIMAL, tls={"mode": "off"}))
        reconciler = api.reconciler = Reconciler(api, IMAGES, Masters(None), Metrics())  # type: ignore[arg-type]
        reconciler.enqueue(KEY_OF_DEMO)
        while not api.statuses:
            await asyncio.sleep(0.01)
        assert reconciler.store.children(KEY_OF_DEMO)
        api.resource = None
        reconciler.enqueue(KEY_OF_DEMO)
        while reconciler.store.children(KEY_OF_DEMO):
            await asyncio.sleep(0.01)
        await reconciler.close()

    asyncio.run(asyncio.wait_for(run(), 60))


def test_a_deployment_that_is_created_anew_during_a_pass_does_not_get_the_status_of_the_one_before():
    class Replaced(Api):
        def apply(self, manifest: dict[str, Any], dry_run: bool = False) -> dict[str, Any]:
            if self._resource is not None and self._resource["metadata"]["uid"] == UID:
                self.replace_unwatched("successor")
            return super().apply(manifest, dry_run)

    async def run() -> None:
        api = Replaced(merged(MINIMAL, tls={"mode": "off"}))
        reconciler = api.reconciler = Reconciler(api, IMAGES, Masters(None), Metrics())  # type: ignore[arg-type]
        assert await reconciler.run_pass(KEY_OF_DEMO)
        assert api.statuses == []
        assert await reconciler.run_pass(KEY_OF_DEMO)
        assert len(api.statuses) == 1, "its own"
        await reconciler.close()

    asyncio.run(asyncio.wait_for(run(), 60))


@pytest.mark.parametrize("ticks", range(6))
def test_an_event_that_comes_with_the_end_does_not_hold_the_end_up(ticks):
    """`asyncio.wait_for` of Python 3.11 drops a cancellation that comes together with the event it waits for."""

    async def run() -> None:
        api = Api(merged(MINIMAL, tls={"mode": "off"}))
        reconciler = api.reconciler = Reconciler(api, IMAGES, Masters(None), Metrics())  # type: ignore[arg-type]
        reconciler.enqueue(KEY_OF_DEMO)
        while not api.statuses:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.2)  # until the next event is waited for
        reconciler.enqueue(KEY_OF_DEMO)
        for _ in range(ticks):
            await asyncio.sleep(0)
        await reconciler.close()

    asyncio.run(asyncio.wait_for(run(), 20))


# -- revisions ---------------------------------------------------------------------------------------------------------


def test_a_return_to_an_older_revision_under_a_newer_operator_is_not_rejected(monkeypatch):
    """The stored rendering of a revision without workloads differs from today's, and is immutable."""

    async def run() -> tuple[str, str]:
        player = Player(Scenario.read(Path(__file__).parent / "scenarios" / "new-revision"))
        for step in ({"what": "creation"}, {"what": "start", "pods": {"all": "Ready"}}):
            await player._step(step)
        image = {"worker": {"image": "orca-worker:next"}}
        for step in ({"what": "edit", "edit": image}, *[{"what": "start", "pods": {"all": "Ready"}}] * 4):
            await player._step(step)
        monkeypatch.setattr("support.scenario.IMAGES", replace(IMAGES, master="orca-master:newer"))
        back = {"what": "back", "operator": "restarts", "edit": {"worker": {"image": None}}}
        for step in (back, *[{"what": "start", "pods": {"all": "Ready"}}] * 3):
            await player._step(step)
        await player.masters.close()
        (deployment,) = (body for (kind, _), body in player.api.objects.items() if kind == "Deployment")
        return player.api.condition("Ready")[1], deployment["spec"]["template"]["spec"]["containers"][0]["image"]

    assert asyncio.run(run()) == ("Serving", "orca-master:newer")
