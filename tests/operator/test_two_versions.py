"""Two versions of the operator over one OrcaDeployment: one after the other, and both at the same time.

The other version renders every object differently: pods, start-up files, Services, status.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from orca_operator import names, reconcile, repairs, revision
from orca_operator.manifests import access, boot, services
from orca_operator.metrics import Metrics
from orca_operator.reconcile import Reconciler
from orca_operator.repairs import IMMEDIATE, PAUSE_SECONDS
from support import scenario
from support.orcadeployments import IMAGES, MINIMAL, merged
from support.scenario import KEY, Player, Scenario

SPEC = merged(MINIMAL, replicas=2, parallelism={"pipelineParallelSize": 2})
EDITS: list[dict[str, Any]] = [{"replicas": 3}, {"scheduler": {"maxBatchSize": 7}}, {"service": {"type": "NodePort"}}]
HOURS = 2
STEP_SECONDS = 10


@contextlib.contextmanager
def other_version(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Render as an operator of another version."""

    def with_label(builder: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
        def build(*arguments: Any) -> dict[str, Any]:
            made = builder(*arguments)
            labels = {**made["metadata"]["labels"], "example.com/version": "other"}
            return {**made, "metadata": {**made["metadata"], "labels": labels}}

        return build

    def with_annotation(builder: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
        def build(*arguments: Any) -> dict[str, Any]:
            made = json.loads(json.dumps(builder(*arguments)))
            made["spec"]["template"]["metadata"]["annotations"]["example.com/version"] = "other"
            return dict(made)

        return build

    def all_with_annotation(builder: Callable[..., list[dict[str, Any]]]) -> Callable[..., list[dict[str, Any]]]:
        return lambda context: [with_annotation(lambda each: each)(made) for made in builder(context)]

    today, options, topology = reconcile.make_status, boot._options, boot._topology

    def status(*arguments: Any) -> dict[str, Any]:
        made = today(*arguments)
        return {**made, "conditions": [each for each in made["conditions"] if each["type"] != "JournalReady"]}

    def renamed(context: Any, pipelines: int) -> Any:
        made = topology(context, pipelines)
        return made.model_copy(update={"model": made.model.model_copy(update={"path": "/models/elsewhere"})})

    with monkeypatch.context() as patch:
        patch.setattr(names, "RELEASE", "9.9.9")
        patch.setattr(scenario, "IMAGES", replace(IMAGES, master="orca-master:other", worker="orca-worker:other"))
        patch.setattr(revision, "master_deployment", with_annotation(revision.master_deployment))
        patch.setattr(revision, "worker_stateful_sets", all_with_annotation(revision.worker_stateful_sets))
        patch.setattr(boot, "_options", lambda context: {**options(context), "an-option-of-another-version": 1})
        patch.setattr(boot, "_topology", renamed)
        patch.setattr(services, "client_service", with_label(services.client_service))
        patch.setattr(access, "service_account", with_label(access.service_account))
        patch.setattr(reconcile, "make_status", status)
        yield


async def serving() -> Player:
    player = Player(Scenario(None, "", {"metadata": {}, "spec": SPEC}, []))  # type: ignore[arg-type]
    await player._step({"what": "creation"})
    for _ in range(2):
        await player._step({"what": "start", "pods": {"all": "Ready"}})
    assert player.api.condition("Ready") == ("True", "Serving")
    return player


def running(player: Player) -> dict[str, Any]:
    """Return what a change of would restart or disturb: pods, workloads, start-up files."""
    found: dict[str, Any] = {}
    for (kind, name), body in player.api.objects.items():
        if kind == "Pod":
            found[name] = body["metadata"]["uid"]
        elif kind in ("Deployment", "StatefulSet"):
            found[name] = {key: value for key, value in body["spec"].items() if key != "replicas"}
        elif kind == "ConfigMap":
            found[name] = body["data"]["master.yaml"]
            found[f"{name} model"] = json.loads(body["data"]["topology.json"])["model"]
    return found


def test_an_upgrade_and_the_way_back_restart_nothing_and_change_nothing_of_a_running_master(monkeypatch):
    async def run() -> None:
        player = await serving()
        before = running(player)
        assert len(before) == 1 + 2 * 2 + 3 + 2
        for upgraded in (True, False):
            with other_version(monkeypatch) if upgraded else contextlib.nullcontext():
                for step in ({"what": "upgrade", "operator": "restarts"}, {"what": "rest"}, {"what": "rest"}):
                    await player._step(step)
                    assert running(player) == before
                    assert [call for call in player.api.calls if call.startswith("PUT")] == []
                assert player.api.calls == [], "at rest"
        await player.masters.close()

    asyncio.run(asyncio.wait_for(run(), 120))


def test_an_edit_under_a_newer_operator_changes_only_what_was_edited(monkeypatch):
    async def run() -> None:
        player = await serving()
        pods = {name: uid for name, uid in running(player).items() if isinstance(uid, str) and uid.startswith("uid-")}
        with other_version(monkeypatch):
            await player._step({"what": "upgrade", "operator": "restarts"})
            for edit in EDITS:
                for step in ({"what": "edit", "edit": edit}, *[{"what": "start", "pods": {"all": "Ready"}}] * 3):
                    await player._step(step)
            after = running(player)
            assert after.items() >= pods.items()
            (options,) = (text for name, text in after.items() if name.endswith("-boot"))
            assert "max-batch-size: 7" in options
            assert "an-option-of-another-version" not in options
            assert player.api.condition("FullyApplied")[0] == "True"
            # New pods are of the version that made their revision.
            for step in (
                {"what": "edit", "edit": {"restart": {"id": "1"}}},
                {"what": "start", "pods": {"all": "Ready"}},
            ):
                await player._step(step)
            assert "an-option-of-another-version" in str(running(player))
        await player.masters.close()

    asyncio.run(asyncio.wait_for(run(), 120))


@pytest.mark.exhaustive
def test_two_operators_at_the_same_time_write_ever_less_often(monkeypatch):
    """Each of them would write at every pass of the other one, for ever. Pods are not touched, and an edit is fast."""
    now = [0.0]
    monkeypatch.setattr(repairs, "monotonic", lambda: now[0])
    monkeypatch.setattr(reconcile, "RELIST_SECONDS", -1.0)  # only one of them has the watch of `Api`

    async def run() -> None:
        player = await serving()
        ours, before = player.reconciler, running(player)
        theirs = Reconciler(player.api, IMAGES, player.masters, Metrics(), clock=lambda: player.now)  # type: ignore[arg-type]
        writes: list[int] = []

        async def passes() -> None:
            player.api.calls.clear()
            for operator, version in ((ours, contextlib.nullcontext()), (theirs, other_version(monkeypatch))):
                player.api.reconciler = operator
                with version:
                    await operator.run_pass(KEY)
            player.now += timedelta(seconds=STEP_SECONDS)
            now[0] += STEP_SECONDS
            writes.append(len([call for call in player.api.calls if not call.startswith("Event")]))

        statuses = len(player.api.statuses)
        for _ in range(HOURS * 3600 // STEP_SECONDS):
            await passes()
        disputed = 2  # the Service and the ServiceAccount; the status is counted below
        each = IMMEDIATE + 7 + HOURS * 3600 / PAUSE_SECONDS[1]  # pauses of 10, 20 … 320 s, then of 600 s
        assert sum(writes) <= 2 * disputed * each
        assert sum(writes[-360:]) <= 2 * disputed * 6, "in the second hour"
        assert len(player.api.statuses) - statuses <= 2 * (each + IMMEDIATE), "FullyApplied changes once"
        assert running(player) == before
        assert player.api.condition("FullyApplied") == ("False", "NotApplied")

        resource = player.api.resource
        assert resource is not None
        metadata = {**resource["metadata"], "generation": resource["metadata"]["generation"] + 1}
        player.api.resource = {**resource, "metadata": metadata, "spec": merged(SPEC, service={"type": "NodePort"})}
        await passes()
        assert player.api.objects["Service", "demo"]["spec"]["type"] == "NodePort"
        await player.masters.close()

    asyncio.run(asyncio.wait_for(run(), 300))
