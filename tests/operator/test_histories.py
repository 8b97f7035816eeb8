"""Random histories of edits, failures and restarts of the operator, over an API server in memory.

test_rollout.py plays them with numbers alone; here the whole pass runs: observe, plan, execute, status.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from orca_operator import names
from orca_operator.observe import is_ready, label, ordinal
from support import pods
from support.orcadeployments import MINIMAL, merged
from support.scenario import Player, Scenario

BROKEN = "orca-worker:broken"
"""Workers with this image never become ready."""
REVISIONS: list[dict[str, Any]] = [{"worker": {"image": image}} for image in ("orca-worker:a", "orca-worker:b", BROKEN)]
BOUNDS = [(1, 0), (0, 1), (1, 1), (2, 0), (0, 2)]
"""`maxSurge` and `maxUnavailable`."""
MOST_PASSES = 60
"""Until everything is settled."""


@dataclass
class World:
    """An OrcaDeployment with pods; everything that happens to it ends with a pass of the operator."""

    surge: int
    unavailable: int
    replicas: int = 1
    player: Player = field(init=False)

    def __post_init__(self) -> None:
        strategy = {"type": "RollingUpdate", "maxSurge": self.surge, "maxUnavailable": self.unavailable}
        spec = merged(MINIMAL, tls={"mode": "off"}, rolloutStrategy=strategy, **REVISIONS[0])
        self.player = Player(Scenario(Path(), "", {"metadata": {}, "spec": spec}, []))

    async def run_pass(self, **events: Any) -> None:
        """Run one pass after events; assert that the operator has taken nothing that is needed."""
        player = self.player
        served, held = self.serving(), self.held()
        await player._step({"what": "a pass", **events})
        pods.follow_workloads(player.api, player.now)
        least = self.replicas - self.unavailable
        assert self.serving() >= min(served, least), (served, self.serving(), player.api.calls)
        down = sum(held.values()) - served
        assert sum(self.held().values()) <= max(sum(held.values()), self.replicas + self.surge + down)

    def held(self) -> dict[str, int]:
        """Return the pipelines with pods, by revision."""
        workloads = [body for (kind, _), body in self.player.api.objects.items() if kind == "StatefulSet"]
        counts = {label(body, names.REVISION_LABEL): int(body["spec"]["replicas"]) for body in workloads}
        return {revision: count for revision, count in counts.items() if count}

    def serving(self) -> int:
        """Return the pipelines that serve, of masters that accept requests."""
        api, masters = self.player.api, self.player.masters
        ready = [pod for pod in self.pods(names.MASTER) if is_ready(pod)]
        topologies = [masters._remembered(pod)[0] for pod in ready if self.has_deployment(pod)]
        return sum(pods.serves(api, pipeline.workers) for topology in topologies for pipeline in topology.pipelines)

    def has_deployment(self, pod: dict[str, Any]) -> bool:
        """Whether the Deployment of a master's pod is not deleted: the pod's end is near otherwise."""
        name = names.master("demo", pods.revision_of(pod))
        return ("Deployment", name) in self.player.api.objects

    def pods(self, role: str) -> list[dict[str, Any]]:
        """Return the pods of a role, those of the first pipelines first."""
        found = [body for (kind, _), body in self.player.api.objects.items() if kind == "Pod"]
        return sorted((pod for pod in found if label(pod, names.ROLE_LABEL) == role), key=ordinal)

    def start(self, count: int) -> None:
        """Let up to `count` pods become ready, masters first."""
        unready = [
            pod
            for pod in self.pods(names.MASTER) + self.pods(names.WORKER)
            if not is_ready(pod) and pod["spec"]["containers"][0]["image"] != BROKEN
        ]
        for pod in unready[:count]:
            pods.set_state(self.player.api, pod["metadata"]["name"], "Ready")

    def fail(self, number: int) -> None:
        """Let a ready worker lose its weights."""
        ready = [pod for pod in self.pods(names.WORKER) if is_ready(pod)]
        if ready:
            pods.set_state(self.player.api, ready[number % len(ready)]["metadata"]["name"], "Running")

    async def happen(self, what: str, value: int) -> None:
        """Play one event."""
        match what:
            case "edit":
                await self.run_pass(edit=REVISIONS[value % len(REVISIONS)])
            case "scale":
                self.replicas = 1 + value % 3
                await self.run_pass(edit={"replicas": self.replicas})
            case "start":
                self.start(1 + value)
                await self.run_pass()
            case "fail":
                self.fail(value)
                await self.run_pass()
            case "the operator restarts":
                await self.run_pass(operator="restarts")
            case "the master is silent":
                await self.run_pass(masters={"silent": True})
                await self.run_pass(masters={"silent": False})
            case "the API server fails":
                kind = ("StatefulSet", "Deployment", "ConfigMap", "Service")[value % 4]
                await self.run_pass(refuse={f"apply {kind}": [503, "etcd is down"]})
                await self.run_pass(refuse={})

    async def settle(self) -> None:
        """Let everything that can start become ready."""
        for _ in range(MOST_PASSES):
            self.start(99)
            await self.run_pass()
            if not self.player.api.calls and all(map(is_ready, self.pods(names.WORKER))):
                break


events = st.tuples(
    st.sampled_from(
        ["edit", "edit", "scale", "start", "start", "start", "fail", "the operator restarts", "the master is silent",
         "the API server fails"]
    ),
    st.integers(0, 5),
)  # fmt: skip


def play(bounds: tuple[int, int], history: list[tuple[str, int]], last: int) -> None:
    """Play a history, then an edit to the revision `last` and, if that is broken, one to another."""

    async def run() -> None:
        world = World(*bounds)
        await world.run_pass()
        for event in history:
            await world.happen(*event)
        if REVISIONS[last]["worker"]["image"] == BROKEN:
            await world.run_pass(edit=REVISIONS[0])
            await world.settle()
            before = world.serving()
            assert before == world.replicas
            await world.run_pass(edit=REVISIONS[last])
            await world.settle()
            assert world.serving() >= world.replicas - world.unavailable
        await world.run_pass(edit=REVISIONS[last % 2])
        await world.settle()
        assert list(world.held().values()) == [world.replicas]
        assert world.serving() == world.replicas
        assert world.player.api.condition("Ready") == ("True", "Serving")
        await world.player.masters.close()

    asyncio.run(run())


histories = given(st.sampled_from(BOUNDS), st.lists(events, max_size=15), st.integers(0, 2))
UNHURRIED = [HealthCheck.too_slow]


@pytest.mark.exhaustive
@settings(max_examples=40, deadline=None, suppress_health_check=UNHURRIED)
@histories
def test_every_history_keeps_what_serves_and_ends(bounds, history, last):
    play(bounds, history, last)


@pytest.mark.exhaustive
@pytest.mark.timeout(1200)
@settings(max_examples=300, deadline=None, suppress_health_check=UNHURRIED)
@histories
def test_many_histories_keep_what_serves_and_end(bounds, history, last):
    play(bounds, history, last)
