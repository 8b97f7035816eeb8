"""`Reconciler`: one task per OrcaDeployment, which runs passes until the cluster matches the spec.

A pass: read the spec → observe children and masters → plan → execute → status. Any event about the OrcaDeployment or
its children triggers a pass, and so does a timer. A pass is level-triggered: `enqueue` carries a key and no event.
The OrcaDeployment and its children are those of the store, which watches update.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from orca_contract.reasons import Reason

from orca_operator import names
from orca_operator.certificate_keeper import CertificateKeeper
from orca_operator.cluster import CALL_ENDED, Cluster, ClusterError
from orca_operator.conditions import Situation, find_condition
from orca_operator.execute import Executor
from orca_operator.listing import list_children
from orca_operator.manifests.context import Images, Owner
from orca_operator.master_client import MasterClient
from orca_operator.masters import Masters
from orca_operator.metrics import Metrics
from orca_operator.observe import Object, is_ending
from orca_operator.status import make_status, with_failure
from orca_operator.status_writer import StatusWriter
from orca_operator.steps import Parts, Steps
from orca_operator.store import Key, Store
from orca_operator.turns import Turns
from orca_operator.viewer import Viewer

logger = logging.getLogger(__name__)

QUIET_SECONDS = 0.2
"""Delay between an event and its pass, because events come in bursts."""
POLL_SECONDS = 5.0
"""Interval of passes without an event: masters are polled for their state."""
REST_SECONDS = (15.0, 20.0)
"""The same, random, after a pass without an event that changed nothing, while the reason of `Ready` is in RESTING and
no other revision has workloads, and no ready master is silent."""
RESTING = (Reason.SERVING, Reason.SUSPENDED, Reason.SCALED_TO_ZERO)
RELIST_SECONDS = 600.0
RETRY_SECONDS = (1.0, 60.0)
PROPAGATION = timedelta(minutes=5)
"""Time until every pod has the new content of a Secret: the kubelet's sync takes up to two minutes."""


def utc_now() -> datetime:
    """Return the current time, with its time zone."""
    return datetime.now(UTC)


@dataclass(slots=True)
class _Deployment:
    """State between the passes over the OrcaDeployment of one name: only caches, which a restart may lose."""

    wake: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None
    parts: Parts | None = None
    listed_at: float = float("-inf")
    unlisted: list[str] = field(default_factory=list)
    """Why kinds are missing in the listing, as sentences."""
    due_since: float | None = None
    """Since when a pass is due or runs, None between the passes."""
    moved_at: float = float("-inf")
    """Time at which a pass, or a call to the API server in it, ended last."""
    has_failed: bool = False
    """Whether the API server has failed the last pass."""
    rests: bool = False
    """Whether the last pass changed nothing, in one of the RESTING reasons."""

    def stop_alarm(self) -> None:
        """Stop waiting for requests at masters that sleep."""
        if self.parts is not None:
            self.parts.masters.alarm.watch(())


class Reconciler:
    """Reconciles all OrcaDeployments of the watched namespaces, on one event loop."""

    def __init__(
        self,
        cluster: Cluster,
        images: Images,
        masters: MasterClient,
        metrics: Metrics,
        propagation: timedelta = PROPAGATION,
        clock: Callable[[], datetime] = utc_now,
    ) -> None:
        self._propagation = propagation
        self._clock = clock
        self.store = Store()
        self._cluster = cluster
        self._images = images
        self._masters = masters
        self._metrics = metrics
        self._turns = Turns()
        self._deployments: dict[Key, _Deployment] = {}
        self._moved_at = float("-inf")
        """The latest `moved_at`, also of OrcaDeployments that are gone."""
        self._newest_ended = float("-inf")
        """Time since which the pass was due that became due last, of all that have ended."""
        metrics.watch_queue(lambda: len(self.due()))

    def enqueue(self, key: Key) -> None:
        """Request a pass over one OrcaDeployment."""
        deployment = self._deployment(key)
        if deployment.task is None:
            deployment.task = asyncio.create_task(self._run(key, deployment))
        deployment.wake.set()
        if deployment.due_since is None:
            deployment.due_since = time.monotonic()

    async def run_pass(self, key: Key) -> bool:
        """Run one pass; return whether the OrcaDeployment still exists. Raises ClusterError."""
        return await self._pass(key, self._deployment(key))

    def due(self) -> dict[Key, float]:
        """Return the seconds since which a pass is due or runs, by OrcaDeployment."""
        now = time.monotonic()
        return {
            key: now - deployment.due_since
            for key, deployment in self._deployments.items()
            if deployment.due_since is not None
        }

    def hung(self, seconds: float) -> dict[Key, float]:
        """Return the passes in which nothing has ended for longer than `seconds`, and for how long.

        All passes share a few threads, in order, so that one of many waits for long while the API server is slow. Then
        calls of others end, but no pass that became due `seconds` after the wait had begun.
        """
        now = time.monotonic()
        begin = now - seconds if now - self._moved_at > seconds else self._newest_ended - seconds
        moved = {key: max(self._deployments[key].moved_at, now - since) for key, since in self.due().items()}
        return {key: now - at for key, at in moved.items() if at < begin}

    async def close(self) -> None:
        """Cancel all tasks and close the connections to masters."""
        tasks = [deployment.task for deployment in self._deployments.values() if deployment.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for deployment in self._deployments.values():
            deployment.stop_alarm()
        await self._masters.close()

    def _move(self, deployment: _Deployment) -> None:
        """Record the end of a pass, or of a call in it."""
        deployment.moved_at = self._moved_at = time.monotonic()

    def _deployment(self, key: Key) -> _Deployment:
        return self._deployments.setdefault(key, _Deployment())

    def _parts(self, deployment: _Deployment, owner: Owner) -> Parts:
        if deployment.parts is None or deployment.parts.uid != owner.uid:
            deployment.stop_alarm()
            executor = Executor(self._cluster)
            keeper = CertificateKeeper(executor, owner, self._propagation)
            masters = Masters(self._masters, executor, keeper, deployment.wake.set)
            viewer, status = Viewer(self._cluster), StatusWriter(self._cluster)
            deployment.parts = Parts(owner.uid, executor, keeper, masters, viewer, status)
        return deployment.parts

    async def _run(self, key: Key, deployment: _Deployment) -> None:
        CALL_ENDED.set(lambda: self._move(deployment))
        retry, longest = RETRY_SECONDS
        delay = POLL_SECONDS
        while True:
            # Not asyncio.wait_for: in Python 3.11 it drops a cancellation that comes together with the event.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(delay):
                    await deployment.wake.wait()
            deployment.due_since = deployment.due_since or time.monotonic()
            timed = not deployment.wake.is_set()
            if not timed:
                await asyncio.sleep(QUIET_SECONDS)
            try:
                async with self._turns.turn():
                    deployment.wake.clear()
                    with self._metrics.timed_pass():
                        exists = await self._pass(key, deployment)
            except Exception as error:
                if isinstance(error, ClusterError):
                    logger.warning("%s/%s: %s; next pass in %.0f s", *key, error, retry)
                else:
                    logger.exception("%s/%s: unexpected error; next pass in %.0f s", *key, retry)
                delay, retry = retry, min(2 * retry, longest)
            else:
                if not exists and not deployment.wake.is_set():
                    break
                delay = random.uniform(*REST_SECONDS) if timed and deployment.rests else POLL_SECONDS
                retry = RETRY_SECONDS[0]
            finally:
                self._move(deployment)
                self._newest_ended = max(self._newest_ended, deployment.due_since)
            deployment.due_since = time.monotonic() if deployment.wake.is_set() else None
        # Before the first await: a deployment of this name that is created meanwhile gets its own task.
        del self._deployments[key]
        deployment.stop_alarm()
        self.store.forget(key)
        self._metrics.forget(key)
        await self._masters.forget(names.dns_name(names.MASTER, key[1], key[0]))

    async def _pass(self, key: Key, deployment: _Deployment) -> bool:
        """Run one pass; return whether the OrcaDeployment still exists. Raises ClusterError.

        The status names the error of the second failed pass in a row, so that a single one does not change the status.
        """
        try:
            exists = await self._reconcile(key, deployment)
        except ClusterError as error:
            if deployment.has_failed:
                await self._name_failure(key, deployment, error)
            deployment.has_failed = True
            raise
        deployment.has_failed = False
        return exists

    async def _reconcile(self, key: Key, deployment: _Deployment) -> bool:
        namespace, name = key
        deployment.rests = False
        if (resource := await self._read(key, deployment)) is None:
            return False
        metadata = resource["metadata"]
        parts = self._parts(deployment, Owner(name, namespace, metadata["uid"]))
        if is_ending(resource):
            return True
        result = await Steps(parts, resource, self.store.children(key), self._images, self._clock()).run()
        masters = parts.masters
        failures = (*masters.not_applied, *masters.not_woken, *result.failures, *deployment.unlisted)
        situation = Situation(
            name,
            namespace,
            int(metadata["generation"]),
            result.spec,
            result.context.revision if result.context else None,
            result.view,
            result.problem,
            parts.status.skipped,
            [*dict.fromkeys(failures)],
            result.source,
            parts.keeper.problems,
            result.autoscaler_refusal,
            result.recovery,
        )
        status = make_status(situation, resource.get("status") or {})
        reason = str(find_condition(status, "Ready")["reason"])
        self._metrics.set_reason(key, reason)
        changes_status = await self._write_status(key, parts, resource, status)
        revisions = result.view.observed.revisions()
        is_over = reason in RESTING and len(revisions) <= 1 and not any(map(result.view.observed.is_silent, revisions))
        deployment.rests = is_over and not result.changes and not changes_status
        return True

    async def _name_failure(self, key: Key, deployment: _Deployment, failure: ClusterError) -> None:
        """Set FullyApplied to False for a pass that the API server has failed, if it stores at least that."""
        if (resource := self.store.deployment(key)) is None:
            return
        owner = Owner(key[1], key[0], resource["metadata"]["uid"])
        if (parts := deployment.parts or self._parts(deployment, owner)).uid != owner.uid:
            return
        generation = int(resource["metadata"]["generation"])
        status = with_failure(resource.get("status") or {}, str(failure), generation, self._clock())
        with contextlib.suppress(ClusterError):
            await self._write_status(key, parts, resource, status)

    async def _write_status(self, key: Key, parts: Parts, resource: Object, status: dict[str, Any]) -> bool:
        """Write a status that differs; return whether it does. Raises ClusterError."""
        written = await asyncio.to_thread(parts.status.write, resource, status, resource.get("status") or {})
        if written is None:
            self.store.drop_deployment(key)
        elif written is not resource:
            self.store.update_deployment(written, deleted=False)
        return written is not resource

    async def _read(self, key: Key, deployment: _Deployment) -> Object | None:
        """Return the OrcaDeployment, None if it does not exist. Lists its children if that is due."""
        interval = RETRY_SECONDS[1] if deployment.unlisted else RELIST_SECONDS
        listing = time.monotonic() - deployment.listed_at > interval
        # One that is deleted is read in each pass, so that passes end in their order at the threads (`hung`).
        if not listing and (known := self.store.deployment(key)) is not None and not is_ending(known):
            return known
        resource = await asyncio.to_thread(self._cluster.get, names.KIND, *key)
        if resource is not None:
            self.store.update_deployment(resource, deleted=False)
            if listing:
                self.store.begin_listing(key)
                children, deployment.unlisted = await asyncio.to_thread(list_children, self._cluster, key)
                self.store.replace(key, children)
                deployment.listed_at = time.monotonic()
        return resource
