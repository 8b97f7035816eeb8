"""An operator at rest: no writes, no reads of the OrcaDeployment, rarer passes; and passes that do not end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from orca_operator import reconcile
from orca_operator.cluster import CALL_ENDED, ClusterError
from orca_operator.handlers import HUNG_SECONDS
from orca_operator.metrics import Metrics
from orca_operator.names import KIND
from orca_operator.reconcile import Reconciler
from orca_operator.store import Key
from support.api_server import Api
from support.masters import Masters
from support.orcadeployments import IMAGES, MINIMAL, merged
from support.scenario import Player, Scenario

KEY = ("default", "demo")
SCENARIO = Path(__file__).parent / "scenarios" / "scaling"


async def serving() -> Player:
    """Return a player whose OrcaDeployment serves, and whose last pass changed nothing."""
    player = Player(Scenario.read(SCENARIO))
    await player._step({"what": "creation"})
    await player._step({"what": "start", "pods": {"all": "Ready"}})
    await player._step({"what": "rest"})
    assert player.api.condition("Ready") == ("True", "Serving")
    return player


async def until(holds: Callable[[], Any]) -> None:
    async with asyncio.timeout(60):
        while not holds():
            await asyncio.sleep(0.01)


# -- no writes, and no reads of the OrcaDeployment ---------------------------------------------------------------------


def test_passes_at_rest_write_nothing_and_read_no_orcadeployment():
    async def run() -> None:
        player = await serving()
        statuses = len(player.api.statuses)
        player.api.reads.clear()
        for _ in range(50):
            await player._step({"what": "rest"})
            assert player.api.calls == []
        assert len(player.api.statuses) == statuses
        assert KIND not in player.api.reads
        await player.masters.close()

    asyncio.run(asyncio.wait_for(run(), 60))


def test_a_crd_that_is_older_than_the_operator_causes_no_writes_at_rest(rests):
    """The API server drops the fields of the status that its CRD lacks."""

    async def run() -> None:
        player = await serving()
        patch = player.api.patch_status
        player.api.patch_status = lambda namespace, name, status, version: patch(  # type: ignore[method-assign]
            namespace, name, {**status, "recoveryPolicy": None}, version
        )
        player._edit({"scheduler": {"maxQueueDepth": 7}})
        for _ in range(3):
            await player.reconciler.run_pass(KEY)
        statuses = len(player.api.statuses)
        player.reconciler.enqueue(KEY)
        await until(lambda: rests)
        assert "recoveryPolicy" not in player.api.statuses[-1]
        assert len(player.api.statuses) == statuses
        await player.reconciler.close()

    asyncio.run(asyncio.wait_for(run(), 60))


def test_a_restarted_operator_reads_and_lists_once(monkeypatch):
    async def run() -> None:
        player = await serving()
        player._operator("restarts")
        player.api.reads.clear()
        for _ in range(3):
            await player._step({"what": "rest"})
        assert player.api.reads.count(KIND) == 1
        monkeypatch.setattr(reconcile, "RELIST_SECONDS", -1.0)
        await player._step({"what": "ten minutes later", "seconds": 600})
        assert player.api.reads.count(KIND) == 2
        await player.masters.close()

    asyncio.run(asyncio.wait_for(run(), 60))


def test_a_deletion_that_the_watch_missed_is_seen_with_that_of_the_first_child():
    """Otherwise the operator would create the children again that the garbage collector deletes."""

    async def run() -> None:
        player = await serving()
        player.api.delete_unwatched()
        player.api.calls.clear()
        assert await player.reconciler.run_pass(KEY), "nothing tells of it yet"
        player.api.remove(*next(place for place in player.api.objects if place[0] == "Service"))
        assert not await player.reconciler.run_pass(KEY)
        assert player.api.calls == []
        await player.masters.close()

    asyncio.run(asyncio.wait_for(run(), 60))


def test_a_child_that_is_deleted_during_a_pass_makes_the_next_pass_read_the_orcadeployment():
    async def run() -> None:
        player = await serving()
        service = next(place for place in player.api.objects if place[0] == "Service")
        state = player.masters.state

        async def deletes(door: Any) -> Any:
            player.api.delete_unwatched()
            player.api.remove(*service)
            return await state(door)

        player.masters.state = deletes  # type: ignore[method-assign]
        player.api.calls.clear()
        assert await player.reconciler.run_pass(KEY)
        assert not await player.reconciler.run_pass(KEY)
        assert player.api.calls == []
        await player.masters.close()

    asyncio.run(asyncio.wait_for(run(), 60))


def test_a_status_that_cannot_be_written_because_the_deployment_is_gone_ends_its_passes():
    async def run() -> None:
        player = await serving()
        player._edit({"replicas": 3})
        player.api.delete_unwatched()
        assert await player.reconciler.run_pass(KEY)
        assert not await player.reconciler.run_pass(KEY)
        await player.masters.close()

    asyncio.run(asyncio.wait_for(run(), 60))


# -- rarer passes ------------------------------------------------------------------------------------------------------


@pytest.fixture
def rests(monkeypatch) -> list[tuple[float, float]]:
    """Shorten the interval of passes without an event, except that of a deployment at rest; note each rest."""
    noted = []

    def uniform(shortest: float, longest: float) -> float:
        noted.append((shortest, longest))
        return 3600.0

    monkeypatch.setattr(reconcile, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(reconcile, "QUIET_SECONDS", 0.0)
    monkeypatch.setattr("orca_operator.reconcile.random.uniform", uniform)
    return noted


def passes(metrics: Metrics) -> float:
    """Return the number of passes that came through."""
    return metrics.registry.get_sample_value("orca_operator_reconciles_total", {"result": "succeeded"}) or 0.0


def test_a_serving_deployment_is_polled_rarely_and_an_event_is_taken_up_at_once(rests):
    async def run() -> None:
        player = await serving()
        player.reconciler.enqueue(KEY)
        await until(lambda: rests == [reconcile.REST_SECONDS])
        before = len(player.api.statuses)
        player._edit({"replicas": 3})
        player.reconciler.enqueue(KEY)
        await until(lambda: len(player.api.statuses) > before)
        assert len(rests) == 1, "a deployment that scales is not at rest"
        await player.reconciler.close()

    asyncio.run(asyncio.wait_for(run(), 60))


def test_a_deployment_whose_master_is_silent_is_polled_often(rests):
    """It reads as Serving for half a minute, in which the master must be asked more than once or twice."""

    async def run() -> None:
        player = await serving()
        player.masters.silent = True
        metrics = player.reconciler._metrics
        before = passes(metrics)
        player.reconciler.enqueue(KEY)
        await until(lambda: passes(metrics) > before + 20)
        assert player.api.condition("Ready") == ("True", "Serving")
        assert rests == []
        player.masters.silent = False
        await until(lambda: rests)
        await player.reconciler.close()

    asyncio.run(asyncio.wait_for(run(), 60))


def test_a_deployment_whose_old_revision_drains_is_polled_often(rests):
    """The old master reports that it has answered everything; no event does."""

    async def run() -> None:
        player = await serving()
        await player._step({"what": "edit", "edit": {"worker": {"image": "next:1"}}})
        await player._step({"what": "the new revision serves", "pods": {"all": "Ready"}})
        assert player.api.condition("Ready") == ("True", "Serving")
        metrics = player.reconciler._metrics
        before = passes(metrics)
        player.reconciler.enqueue(KEY)
        await until(lambda: passes(metrics) > before + 20)
        assert rests == []
        await player.reconciler.close()

    asyncio.run(asyncio.wait_for(run(), 60))


@pytest.mark.parametrize(("suspend", "at_rest"), [(True, True), (False, False)], ids=["suspended", "loading"])
def test_a_deployment_that_starts_is_polled_often(rests, suspend, at_rest):
    metrics = Metrics()

    async def run() -> None:
        api = Api(merged(MINIMAL, tls={"mode": "off"}, suspend=suspend))
        reconciler = api.reconciler = Reconciler(api, IMAGES, Masters(api), metrics)  # type: ignore[arg-type]
        reconciler.enqueue(KEY)
        await until(lambda: rests if at_rest else passes(metrics) > 20)
        await reconciler.close()

    asyncio.run(asyncio.wait_for(run(), 60))
    assert bool(rests) == at_rest


# -- passes that do not end --------------------------------------------------------------------------------------------


def test_a_pass_that_hangs_is_due_until_it_ends():
    """The liveness probe and the depth of the queue read this (test_handlers.py)."""
    hangs, released, metrics = threading.Event(), threading.Event(), Metrics()

    def depth() -> float | None:
        return metrics.registry.get_sample_value("orca_operator_queue_depth")

    class Hanging(Api):
        def get(self, kind: str, namespace: str, name: str) -> dict[str, Any] | None:
            hangs.set()
            assert released.wait(60)
            return super().get(kind, namespace, name)

    async def run() -> None:
        api = Hanging(merged(MINIMAL, tls={"mode": "off"}, suspend=True))
        reconciler = api.reconciler = Reconciler(api, IMAGES, Masters(api), metrics)  # type: ignore[arg-type]
        assert (reconciler.due(), depth()) == ({}, 0)
        reconciler.enqueue(KEY)
        assert set(reconciler.due()) == {KEY}, "from the event on"
        await until(hangs.is_set)
        first = reconciler.due()[KEY]
        reconciler.enqueue(KEY)
        await until(lambda: reconciler.due()[KEY] > first)
        assert depth() == 1
        released.set()
        await until(lambda: not reconciler.due())
        assert depth() == 0
        await reconciler.close()

    try:
        asyncio.run(asyncio.wait_for(run(), 60))
    finally:
        released.set()


class Clock:
    """The reconciler's clock, which only a test moves on, so that a slow machine changes nothing."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.mark.parametrize("deleted", [False, True])
def test_passes_over_many_deployments_do_not_hang_while_the_api_server_is_slow(deleted, monkeypatch):
    """A restart would help none of them, and begin with its own calls to this API server."""
    monkeypatch.setattr(reconcile, "time", clock := Clock())
    monkeypatch.setattr(reconcile, "RETRY_SECONDS", (60.0, 60.0))  # no pass is tried again
    begun, ends = list[Key](), threading.Semaphore(0)

    class Slow(Api):
        def get(self, kind: str, namespace: str, name: str) -> dict[str, Any] | None:
            begun.append((namespace, name))
            assert ends.acquire(timeout=60)
            if deleted:
                return None
            raise ClusterError(0, "the API server does not answer")

    async def run() -> float:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        api, longest = Slow(MINIMAL), 0.0
        reconciler = Reconciler(api, IMAGES, Masters(api), Metrics())  # type: ignore[arg-type]
        waiting = [("default", f"demo-{number}") for number in range(40)]
        for key in waiting:
            reconciler.enqueue(key)
        while waiting:
            await until(lambda: begun)
            clock.now += 20
            longest = max(longest, *reconciler.due().values())
            assert reconciler.hung(HUNG_SECONDS) == {}
            waiting.remove(ended := begun.pop())
            ends.release()
            await until(lambda key=ended: key not in reconciler.due())
        await reconciler.close()
        return longest

    assert asyncio.run(asyncio.wait_for(run(), 120)) > HUNG_SECONDS


def test_an_orcadeployment_that_is_deleted_is_read_in_each_pass():
    """Else its passes would end before those that wait for a thread, and `hung` would take these for hung."""

    async def run() -> None:
        api = Api(MINIMAL)
        reconciler = api.reconciler = Reconciler(api, IMAGES, Masters(api), Metrics())  # type: ignore[arg-type]
        assert api.resource is not None
        metadata = {**api.resource["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"}
        api.resource = {**api.resource, "metadata": metadata}
        for _ in range(3):
            api.reads.clear()
            assert await reconciler.run_pass(KEY)
            assert (api.reads, api.calls) == ([KIND], [])
        await reconciler.close()

    asyncio.run(asyncio.wait_for(run(), 60))


def test_a_pass_of_many_slow_calls_hangs_only_when_none_of_them_ends(monkeypatch):
    """Others that became due later end meanwhile: each call is bounded, but not their sum."""
    monkeypatch.setattr(reconcile, "time", clock := Clock())
    begun, answers = threading.Semaphore(0), threading.Semaphore(0)

    class Slow(Api):
        def get(self, kind: str, namespace: str, name: str) -> dict[str, Any] | None:
            if name == "other":
                return None
            for _ in range(20):
                begun.release()
                assert answers.acquire(timeout=60)
                CALL_ENDED.get()()
            return None

    async def run() -> None:
        api = Slow(MINIMAL)
        reconciler = Reconciler(api, IMAGES, Masters(api), Metrics())  # type: ignore[arg-type]
        reconciler.enqueue(KEY)
        for _ in range(20):
            await until(lambda: begun.acquire(blocking=False))
            clock.now += 20
            assert reconciler.hung(HUNG_SECONDS) == {}
            reconciler.enqueue(("default", "other"))
            await until(lambda: set(reconciler.due()) <= {KEY})
            assert reconciler.hung(HUNG_SECONDS) == {}
            if clock.now - 1000 < 400:
                answers.release()
        clock.now += HUNG_SECONDS + 1
        assert set(reconciler.hung(HUNG_SECONDS)) == {KEY}, "nothing else ends"
        answers.release()
        await until(lambda: not reconciler.due())
        await reconciler.close()

    try:
        asyncio.run(asyncio.wait_for(run(), 60))
    finally:
        answers.release(40)


def test_a_pass_that_hangs_is_found_also_beside_passes_that_end(monkeypatch):
    monkeypatch.setattr(reconcile, "time", clock := Clock())
    hangs, released = threading.Event(), threading.Event()

    class Hanging(Api):
        def get(self, kind: str, namespace: str, name: str) -> dict[str, Any] | None:
            if name == "hanging":
                hangs.set()
                assert released.wait(60)
            return None

    async def run() -> None:
        api = Hanging(MINIMAL)
        reconciler = Reconciler(api, IMAGES, Masters(api), Metrics())  # type: ignore[arg-type]
        hanging = ("default", "hanging")
        reconciler.enqueue(hanging)
        await until(hangs.is_set)
        clock.now += HUNG_SECONDS
        assert reconciler.hung(HUNG_SECONDS) == {}
        clock.now += 1
        assert set(reconciler.hung(HUNG_SECONDS)) == {hanging}, "nothing else ends"
        reconciler.enqueue(KEY)
        assert set(reconciler.hung(HUNG_SECONDS)) == {hanging}
        await until(lambda: KEY not in reconciler.due())
        assert set(reconciler.hung(HUNG_SECONDS)) == {hanging}, "it alone is due"
        released.set()
        await until(lambda: not reconciler.due())
        await reconciler.close()

    try:
        asyncio.run(asyncio.wait_for(run(), 60))
    finally:
        released.set()


def test_metrics_have_the_passes_and_the_reason_of_a_deployment(rests):
    metrics = Metrics()

    def value(name: str, **labels: str) -> float | None:
        return metrics.registry.get_sample_value(f"orca_operator_{name}", labels)

    async def run() -> None:
        api = Api(merged(MINIMAL, tls={"mode": "off"}, suspend=True))
        api.refusals = {"get OrcaDeployment": (500, "etcd is down")}
        reconciler = api.reconciler = Reconciler(api, IMAGES, Masters(api), metrics)  # type: ignore[arg-type]
        reconciler.enqueue(KEY)
        await until(lambda: value("reconciles_total", result="failed"))
        api.refusals = {}
        reconciler.enqueue(KEY)
        await until(lambda: rests)
        assert value("orcadeployments", reason="Suspended") == 1
        ended = value("reconciles_total", result="failed"), value("reconciles_total", result="succeeded")
        assert value("reconcile_duration_seconds_count") == sum(number or 0 for number in ended)
        api.resource = None
        reconciler.enqueue(KEY)
        await until(lambda: value("orcadeployments", reason="Suspended") == 0)
        await reconciler.close()

    asyncio.run(asyncio.wait_for(run(), 60))
