"""`Masters`: reads the reports of one OrcaDeployment's masters, and sends them changes of topology and scheduler."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from http import HTTPStatus

from orca_contract.state import StateReport

from orca_operator.actions import Put, PutTopology
from orca_operator.alarm import Alarm
from orca_operator.attempts import REFUSALS, Attempts
from orca_operator.certificate_keeper import CertificateKeeper
from orca_operator.execute import Executor
from orca_operator.manifests.context import Context
from orca_operator.master_client import Door, MasterClient, MasterError
from orca_operator.names import MASTER
from orca_operator.observe import AdminPort, Object, Observed, has_no_pipelines, holds_requests, is_ending, runs
from orca_operator.plan import unknown_to_master
from orca_operator.store import Key
from orca_operator.wake_up import wake_ups

logger = logging.getLogger(__name__)

RESTORE_SECONDS = 30.0
"""Interval of reads of the admin Secret while a master's pod starts, for example while it pulls its image."""


class Masters:
    """The masters of one OrcaDeployment, one per revision.

    `on_change` is called when a change took effect, and when a request comes to a master without pipelines.
    """

    def __init__(
        self, client: MasterClient, executor: Executor, keeper: CertificateKeeper, on_change: Callable[[], None]
    ) -> None:
        self.not_applied: tuple[str, ...] = ()
        """Why parts of the spec are not in effect, as sentences."""
        self._client = client
        self._executor = executor
        self._keeper = keeper
        self._on_change = on_change
        self.alarm = Alarm(client, on_change)
        self._attempts = Attempts()
        self._restored_at = float("-inf")

    async def observe(self, key: Key, children: tuple[Object, ...], context: Context | None) -> Observed:
        """Return the children and the reports of running masters; without a context no token is created."""
        observed = Observed(children)
        ports = {revision: observed.admin_port(revision) for revision in observed.revisions()}
        reports: dict[str, StateReport] = {}
        unauthorized = set()
        token = await self._token(key, context, context is not None and self._restores(observed))
        for revision, port in ports.items():
            if port is None:
                continue
            report, status = await self._report(key, revision, port, token)
            if status == HTTPStatus.UNAUTHORIZED:
                before, token = token, await self._token(key, context, True)
                if token != before:
                    report, status = await self._report(key, revision, port, token)
            if report is not None:
                reports[revision] = report
            elif status == HTTPStatus.UNAUTHORIZED:
                unauthorized.add(revision)
        return Observed(children, reports, frozenset(unauthorized))

    async def _token(self, key: Key, context: Context | None, fresh: bool) -> str:
        if context is None:
            return await asyncio.to_thread(self._executor.read_admin_token, *key, fresh)
        return await asyncio.to_thread(self._executor.admin_token, context, fresh)

    def _restores(self, observed: Observed) -> bool:
        """Whether to look for the Secret now: a master's pod cannot start after somebody has deleted the Secret."""
        starts = any(not runs(pod) for pod in observed.pods(MASTER) if not is_ending(pod))
        due = starts and time.monotonic() - self._restored_at >= RESTORE_SECONDS
        if due:
            self._restored_at = time.monotonic()
        return due

    async def _report(self, key: Key, revision: str, port: AdminPort, token: str) -> tuple[StateReport | None, int]:
        """Return a master's report, or None and the HTTP status (0 without a response)."""
        if (door := self._door(port, token)) is None:
            return None, 0
        try:
            return await self._client.state(door), HTTPStatus.OK
        except MasterError as error:
            logger.debug("%s/%s: %s", *key, error)
            if error.status == HTTPStatus.OK:  # a report that this version cannot read
                self.not_applied = (f"master of revision {revision}: {error}",)
            self._keeper.forget(port.secret)
            return None, error.status

    async def send(self, puts: Sequence[Put], observed: Observed, context: Context) -> Observed:
        """Send changes, record those without effect in `not_applied`, and return the latest reports."""
        reports, problems = dict(observed.reports), []
        self._attempts.prune(puts, reports)
        token = await asyncio.to_thread(self._executor.admin_token, context)
        for put in puts:
            port, before = observed.admin_port(put.revision), reports[put.revision]
            if port is None or (door := self._door(port, token)) is None:
                continue
            if not (problem := self._attempts.futile(put, before)):
                problem, reports[put.revision] = await self._put(door, put, before)
                if problem:
                    logger.warning("%s/%s: %s", context.namespace, context.name, problem)
                elif reports[put.revision] is not before:
                    self._on_change()
            if problem:
                problems.append(f"master of revision {put.revision}: {problem}")
        if context.revision in reports:
            self.not_applied = (*problems, *unknown_to_master(context, observed))
        self._set_alarm(observed, reports, token)
        return replace(observed, reports=reports)

    async def wake(self, key: Key, observed: Observed) -> None:
        """Wake masters whose requests wait while the spec is rejected; the next pass repeats what fails."""
        scales, puts = wake_ups(observed, observed.revisions())
        await asyncio.to_thread(self._executor.scale, scales, key[0])
        token = await self._token(key, None, False)
        for put in puts:
            port = observed.admin_port(put.revision)
            if port is not None and (door := self._door(port, token)) is not None:
                problem, _ = await self._put(door, put, observed.reports[put.revision])
                if problem:
                    logger.warning("%s/%s: %s", *key, problem)
        self._set_alarm(observed, observed.reports, token)

    async def _put(self, door: Door, put: Put, before: StateReport) -> tuple[str, StateReport]:
        """Send one change; return why the change is not in effect ("" if it is), and the master's latest report."""
        try:
            after = await self._client.put(door, put.route, put.body)
        except MasterError as error:
            if error.status == HTTPStatus.CONFLICT and isinstance(put, PutTopology) and not put.body.pipelines:
                return "", before  # a request came after the report of idleness: not now
            if error.status in REFUSALS:
                self._attempts.note(put, before, str(error))
            return str(error), before
        return self._attempts.note(put, after), after

    def _set_alarm(self, observed: Observed, reports: Mapping[str, StateReport], token: str) -> None:
        """Wait for the first request at a master that reports neither pipelines nor requests, of any revision."""
        for revision, report in reports.items():
            port = observed.admin_port(revision)
            door = None if port is None else self._door(port, token)
            if door is not None and has_no_pipelines(report) and not holds_requests(report):
                self.alarm.watch(door)
                return
        self.alarm.stop()

    def _door(self, port: AdminPort, token: str) -> Door | None:
        """Return address and credentials of a master; None without the credentials that its TLS needs."""
        if not port.secret:
            return Door(port.address, token)
        credentials = self._keeper.credentials.get(port.secret)
        return Door(port.address, token, credentials) if credentials is not None else None
