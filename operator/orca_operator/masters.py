"""`Masters`: reads the reports of one OrcaDeployment's masters, and sends them changes of topology and scheduler."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import replace
from http import HTTPStatus

from orca_contract.state import StateReport

from orca_operator.actions import Put
from orca_operator.alarm import Alarm
from orca_operator.attempts import REFUSALS, Attempts
from orca_operator.certificate_keeper import CertificateKeeper
from orca_operator.execute import Executor
from orca_operator.manifests.context import Context, Owner
from orca_operator.master_client import Door, MasterClient, MasterError
from orca_operator.names import MASTER
from orca_operator.observe import AdminPort, Object, Observed, is_ending, runs
from orca_operator.plan import unknown_to_master
from orca_operator.sleep import sleeps, wake_ups
from orca_operator.store import Key

logger = logging.getLogger(__name__)

RESTORE_SECONDS = 30.0
"""Interval of reads of the admin Secret while a master's pod starts, for example while it pulls its image."""
BACKLOG_SECONDS = 60.0
"""How long a backlog counts without a report. A master that answers no longer must not hold a rollout up for ever."""

SILENCE_SECONDS = 30.0
"""From the first of several calls without a response to the cause in the status."""


class Masters:
    """The masters of one OrcaDeployment, one per revision.

    `on_change` is called when a change took effect, and when a request comes to a master that sleeps.
    """

    def __init__(
        self, client: MasterClient, executor: Executor, keeper: CertificateKeeper, on_change: Callable[[], None]
    ) -> None:
        self.not_applied: tuple[str, ...] = ()
        """Why parts of the spec are not in effect, as sentences."""
        self.not_woken: tuple[str, ...] = ()
        """Why masters with waiting requests got no pipeline, as sentences."""
        self._client = client
        self._executor = executor
        self._keeper = keeper
        self._on_change = on_change
        self.alarm = Alarm(client, on_change)
        self._attempts = Attempts()
        self._restored_at = float("-inf")
        self._backlogs: dict[str, float] = {}
        """Time of the last report with a backlog, by revision."""
        self._silent_since: dict[str, float] = {}
        """Time of the first of a ready master's failed calls since its last report, by revision."""

    async def observe(
        self, owner: Owner, children: tuple[Object, ...], context: Context | None, stopped: str = ""
    ) -> Observed:
        """Return the children and the reports of running masters, after waking those whose requests wait.

        `context` is None while the spec is rejected: then no token is created. The revision `stopped` is not woken.
        """
        observed = await self._read((owner.namespace, owner.name), children, context)
        return await self._wake(owner, observed, context, stopped)

    async def _read(self, key: Key, children: tuple[Object, ...], context: Context | None) -> Observed:
        observed = Observed(children)
        ports = {revision: observed.admin_port(revision) for revision in observed.revisions()}
        reports: dict[str, StateReport] = {}
        unauthorized = set()
        unanswered: dict[str, str] = {}
        token = await self._token(key, context, context is not None and self._restores(observed))
        for revision, port in ports.items():
            if port is None:
                continue
            report, error = await self._report(key, revision, port, token)
            if _is_unauthorized(error):
                before, token = token, await self._token(key, context, True)
                if token != before:
                    report, error = await self._report(key, revision, port, token)
            if report is not None:
                reports[revision] = report
            elif _is_unauthorized(error):
                unauthorized.add(revision)
            elif error is not None:
                unanswered[revision] = str(error)
        unanswered = self._lasting({each: why for each, why in unanswered.items() if observed.master_is_ready(each)})
        asleep = [ports[revision] for revision, report in reports.items() if sleeps(report)]
        doors = [self._door(port, token) for port in asleep if port is not None]
        self.alarm.watch([door for door in doors if door is not None])
        backlogs = self._remembered_backlogs(reports, ports.keys())
        return Observed(children, reports, frozenset(unauthorized), backlogs, unanswered)

    def _remembered_backlogs(self, reports: Mapping[str, StateReport], revisions: Set[str]) -> frozenset[str]:
        """Return the revisions without a report whose last one had a backlog, at most BACKLOG_SECONDS ago."""
        now = time.monotonic()
        recent = {
            revision: at
            for revision, at in self._backlogs.items()
            if revision in revisions - reports.keys() and now - at < BACKLOG_SECONDS
        }
        self._backlogs = recent | {revision: now for revision, report in reports.items() if report.has_backlog}
        return frozenset(recent)

    def _lasting(self, unanswered: dict[str, str]) -> dict[str, str]:
        """Return the errors of ready masters that have been silent for SILENCE_SECONDS: a call may fail now and then.

        Not counted is the time in which a pod has an address and is not ready, because its master still starts.
        """
        now = time.monotonic()
        self._silent_since = {revision: self._silent_since.get(revision, now) for revision in unanswered}
        return {
            revision: error
            for revision, error in unanswered.items()
            if now - self._silent_since[revision] >= SILENCE_SECONDS
        }

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

    async def _report(
        self, key: Key, revision: str, port: AdminPort, token: str
    ) -> tuple[StateReport | None, MasterError | None]:
        """Return a master's report, or None and why the call failed, or why none was made."""
        if (door := self._door(port, token)) is None:
            return None, MasterError("the operator has no certificate for the call, see TLSReady")
        try:
            return await self._client.state(door), None
        except MasterError as error:
            logger.debug("%s/%s: %s", *key, error)
            if error.status == HTTPStatus.OK:  # a report that this version cannot read
                self.not_applied = (f"master of revision {revision}: {error}",)
            self._keeper.forget(port.secret)
            return None, error

    async def send(self, puts: Sequence[Put], observed: Observed, context: Context) -> Observed:
        """Send changes, record those without effect in `not_applied`, and return the latest reports."""
        reports, problems = dict(observed.reports), []
        self._attempts.prune(puts, reports)
        token = await asyncio.to_thread(self._executor.admin_token, context)
        for put in puts:
            if problem := await self._send(put, observed, reports, token):
                problems.append(problem)
        if context.revision in reports:
            self.not_applied = (*problems, *unknown_to_master(context, observed))
        return replace(observed, reports=reports)

    async def _wake(self, owner: Owner, observed: Observed, context: Context | None, stopped: str) -> Observed:
        """Wake masters whose requests wait, unless the deployment is suspended; return the latest reports.

        Nothing that fails later in the pass can prevent it.
        """
        self.not_woken = ()
        suspended = context is not None and context.spec.suspend
        if suspended or not (actions := wake_ups(observed, stopped)):
            return observed
        outcome = await asyncio.to_thread(self._executor.run, actions, owner, observed)
        reports, problems = dict(observed.reports), outcome.failures
        token = await self._token((owner.namespace, owner.name), context, False)
        for put in outcome.puts:
            if problem := await self._send(put, observed, reports, token):
                problems.append(problem)
        self.not_woken = tuple(problems)
        return replace(observed, reports=reports)

    async def _send(self, put: Put, observed: Observed, reports: dict[str, StateReport], token: str) -> str:
        """Send one change unless it is futile, and update the report; return why it is not in effect, "" if it is."""
        port, before = observed.admin_port(put.revision), reports[put.revision]
        if port is None or (door := self._door(port, token)) is None:
            return ""
        if not (problem := self._attempts.futile(put, before)):
            problem, reports[put.revision] = await self._put(door, put, before)
            if problem:
                logger.warning("%s: master of revision %s: %s", door.address, put.revision, problem)
            elif reports[put.revision] is not before:
                self._on_change()
        return f"master of revision {put.revision}: {problem}" if problem else ""

    async def _put(self, door: Door, put: Put, before: StateReport) -> tuple[str, StateReport]:
        """Send one change; return why the change is not in effect ("" if it is), and the master's latest report."""
        try:
            after = await self._client.put(door, put.route, put.body)
        except MasterError as error:
            if error.status == HTTPStatus.LOCKED:  # a request came after the report: the last pipeline stays for now
                return "", before
            if error.status in REFUSALS:
                self._attempts.note(put, before, str(error))
            return str(error), before
        return self._attempts.note(put, after), after

    def _door(self, port: AdminPort, token: str) -> Door | None:
        """Return address and credentials of a master; None without the credentials that its TLS needs."""
        if not port.secret:
            return Door(port.address, token)
        credentials = self._keeper.credentials.get(port.secret)
        return Door(port.address, token, credentials) if credentials is not None else None


def _is_unauthorized(error: MasterError | None) -> bool:
    return error is not None and error.status == HTTPStatus.UNAUTHORIZED
