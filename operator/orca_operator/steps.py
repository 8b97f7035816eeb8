"""The steps of a pass before its status: certificates, observation of children and masters, plan, execution."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from datetime import datetime

from orca_operator import names
from orca_operator.api import Spec
from orca_operator.certificate_keeper import CertificateKeeper
from orca_operator.cluster import ClusterError
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


@dataclass(slots=True)
class Result:
    """What the steps have seen and done: `view` is None until the view is made.

    `problem`: why the spec is not carried out; `source`: see `Situation.certificates`; `changes`: numbers of writes
    and of calls to masters; `failures`: what was tried without success; `error`: why the steps ended early.
    """

    recovery: Recovery
    spec: Spec | None = None
    context: Context | None = None
    view: View | None = None
    problem: Diagnosis | None = None
    source: str = ""
    autoscaler_refusal: str = ""
    changes: int = 0
    failures: list[str] = field(default_factory=list)
    error: ClusterError | None = None


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

    async def run(self) -> Result:
        """Bring the children nearer to the spec.

        A call that the API server fails is returned as `error`, so that the status can name the call, if the view was
        made before, or if there is no master that the view would need. Raises ClusterError for other failed calls.
        """
        result = Result(stored_recovery(self._previous))
        try:
            await self._carry_out(result)
        except RejectedError as error:
            result.problem = Diagnosis(error.reason, str(error))
            await self._certify(result.source)
            result.view = await self._view(await self._observe(None, result.recovery.given_up))
        except ClusterError as error:
            if result.view is None:
                if Observed(self._children).revisions():
                    raise
                result.view = await self._view(Observed(self._children))
            result.error, result.failures = error, [str(error)]
        return result

    async def _carry_out(self, result: Result) -> None:
        """Run the steps, and note in `result` what each of them returns. Raises RejectedError and ClusterError."""
        parts, owner, known = self._parts, self._owner, Observed(self._children)
        spec = result.spec = parse(owner.name, self._resource.get("spec") or {})
        revision = spec_revision(spec, known.revisions())
        context = result.context = Context(owner.name, owner.namespace, owner.uid, spec, revision, self._images)
        source = result.source = certificate_source(context, known)
        await self._certify(source)
        view = result.view = await self._view(await self._observe(context, result.recovery.given_up))
        recovery = result.recovery = recover(context, view, self._previous)
        serving = str(self._previous.get("currentRevision", ""))
        actions = plan(context, view, not parts.keeper.problems.get(source), serving, recovery)
        outcome = await asyncio.to_thread(parts.executor.run, actions, context, view.observed)
        result.view = replace(view, observed=await parts.masters.send(outcome.puts, view.observed, context))
        result.autoscaler_refusal, result.failures = outcome.autoscaler_refusal, outcome.failures
        await asyncio.to_thread(parts.status.announce_skipped, self._resource, outcome.skipped)
        result.changes = outcome.writes + len(outcome.puts)

    async def _certify(self, source: str) -> None:
        """Check and renew the certificates of the desired revision and of running revisions."""
        request = str((self._resource["metadata"].get("annotations") or {}).get(names.ROTATE_ANNOTATION, ""))
        sources = {source, *Observed(self._children).certificate_secrets().values()} - {""}
        await asyncio.to_thread(self._parts.keeper.refresh, sources, request, self._now)

    async def _observe(self, context: Context | None, stopped: str) -> Observed:
        return await self._parts.masters.observe(self._owner, self._children, context, stopped)

    async def _view(self, observed: Observed) -> View:
        return await self._parts.viewer.view(observed, self._owner.namespace, self._now)
