"""The steps of a pass before its status: certificates, observation of children and masters, plan, execution."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from orca_operator import names
from orca_operator.api import Spec
from orca_operator.certificate_keeper import CertificateKeeper
from orca_operator.diagnose import Diagnosis, View
from orca_operator.execute import Executor
from orca_operator.manifests.context import Context, Images, Owner
from orca_operator.masters import Masters
from orca_operator.observe import Object, Observed
from orca_operator.plan import plan
from orca_operator.recovery import Recovery, recover, stored_recovery
from orca_operator.revision import certificate_source, spec_revision
from orca_operator.status_writer import StatusWriter
from orca_operator.validation import RejectedError, parse
from orca_operator.viewer import Viewer


@dataclass(frozen=True, slots=True)
class Parts:
    """Objects that the passes over one OrcaDeployment (one uid) use."""

    uid: str
    executor: Executor
    keeper: CertificateKeeper
    masters: Masters
    viewer: Viewer
    status: StatusWriter


@dataclass(frozen=True, slots=True)
class Result:
    """What a pass has seen and done, for the status. `spec` and `context` are None if the spec is invalid.

    `problem`: why the spec is not carried out; `source`: see `Situation.certificates`; `changes`: number of writes and
    of calls to masters; `failures`: what was tried without success.
    """

    view: View
    recovery: Recovery
    spec: Spec | None
    context: Context | None
    source: str
    problem: Diagnosis | None = None
    autoscaler_refusal: str = ""
    changes: int = 0
    failures: Sequence[str] = ()


class Steps:
    """The steps of one pass over one OrcaDeployment; `children` are those that the pass begins with."""

    def __init__(
        self, parts: Parts, resource: Object, children: tuple[Object, ...], images: Images, now: datetime
    ) -> None:
        metadata = resource["metadata"]
        self._parts = parts
        self._resource = resource
        self._children = children
        self._images = images
        self._now = now
        self._previous = resource.get("status") or {}
        self._owner = Owner(metadata["name"], metadata["namespace"], metadata["uid"])
        self._recovery = stored_recovery(self._previous)
        self._stopped = self._recovery.given_up
        self._spec: Spec | None = None
        self._context: Context | None = None
        self._source = ""
        self._failures: list[str] = []

    async def run(self) -> Result:
        """Bring the children nearer to the spec; raise ClusterError if the API server fails a call."""
        adopted = await asyncio.to_thread(self._parts.executor.adopt, self._children, self._owner)
        self._children, self._failures = adopted
        try:
            return await self._carry_out()
        except RejectedError as error:
            await self._certify()
            view = await self._view(await self._observe(None))
            return self._result(view, problem=Diagnosis(error.reason, str(error)))

    async def _carry_out(self) -> Result:
        """Run the steps; raise RejectedError and ClusterError."""
        parts, owner, known = self._parts, self._owner, Observed(self._children)
        spec = self._spec = parse(owner.name, self._resource.get("spec") or {})
        await asyncio.to_thread(parts.executor.check_rivals, self._resource, self._children)
        revision = spec_revision(spec, known.revisions())
        context = self._context = Context(owner.name, owner.namespace, owner.uid, spec, revision, self._images)
        self._source = certificate_source(context, known)
        await self._certify()
        view = await self._view(await self._observe(context))
        self._recovery = recover(context, view, self._previous)
        serving = str(self._previous.get("currentRevision", ""))
        actions = plan(context, view, not parts.keeper.problems.get(self._source), serving, self._recovery)
        outcome = await asyncio.to_thread(parts.executor.run, actions, context, view.observed)
        view = replace(view, observed=await parts.masters.send(outcome.puts, view.observed, context))
        await asyncio.to_thread(parts.status.announce_skipped, self._resource, outcome.skipped)
        return self._result(
            view,
            autoscaler_refusal=outcome.autoscaler_refusal,
            changes=outcome.writes + len(outcome.puts),
            failures=[*self._failures, *outcome.failures],
        )

    def _result(self, view: View, **further: Any) -> Result:
        return Result(view, self._recovery, self._spec, self._context, self._source, **further)

    async def _certify(self) -> None:
        """Check and renew the certificates of the desired revision and of running revisions."""
        request = str((self._resource["metadata"].get("annotations") or {}).get(names.ROTATE_ANNOTATION, ""))
        sources = {self._source, *Observed(self._children).certificate_secrets().values()} - {""}
        await asyncio.to_thread(self._parts.keeper.refresh, sources, request, self._now)

    async def _observe(self, context: Context | None) -> Observed:
        return await self._parts.masters.observe(self._owner, self._children, context, self._stopped)

    async def _view(self, observed: Observed) -> View:
        return await self._parts.viewer.view(observed, self._owner.namespace, self._now)
