"""What to do next, from what is wanted and what is there. Pure: `plan` returns actions, execute.py carries them out.
The view has the children, the masters' reports, the diagnosis of each pod, and the time of the pass.

Every pass plans everything anew; nothing depends on which event started it. Order within a pass:
1. what pods need before they start (account, Services, policies, boot ConfigMap, stored rendering);
2. a revision that is not wanted any more ends first, its pods included (`rolloutStrategy.type: Recreate`);
3. then StatefulSets and Deployment of the wanted revision, and the live knobs of the running master;
4. what is there and no longer wanted goes.
A pipeline leaves the master's topology before its pods go, so that its requests move to the others first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from orca_contract import routes
from orca_contract.scheduler import SchedulerKnobs
from orca_contract.state import StateReport
from orca_contract.topology import Topology

from orca_operator import names
from orca_operator.diagnose import View
from orca_operator.manifests import access, boot, services, tls
from orca_operator.manifests.context import Context
from orca_operator.observe import Object, Observed, is_ending, label, name_of
from orca_operator.revision import controller_revision, rendering, surplus

WORKLOADS = ("Deployment", "StatefulSet")
PRUNED = (
    *WORKLOADS,
    "ConfigMap",
    "NetworkPolicy",
    "PodDisruptionBudget",
    "PodMonitor",
    "Certificate",
    "Service",
    "ServiceAccount",
)


@dataclass(frozen=True, slots=True)
class Apply:
    """Server-side apply of one object."""

    manifest: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Delete:
    """Deletion of one child."""

    child: Object


@dataclass(frozen=True, slots=True)
class PutTopology:
    """`PUT /topology` to a revision's master."""

    route: ClassVar[str] = routes.TOPOLOGY
    revision: str
    body: Topology

    @staticmethod
    def reported(report: StateReport) -> Topology | None:
        """Return the part of a report that the change is about."""
        return report.topology


@dataclass(frozen=True, slots=True)
class PutScheduler:
    """`PUT /scheduler` to a revision's master."""

    route: ClassVar[str] = routes.SCHEDULER
    revision: str
    body: SchedulerKnobs

    @staticmethod
    def reported(report: StateReport) -> SchedulerKnobs | None:
        """Return the part of a report that the change is about."""
        return report.scheduler


Put = PutTopology | PutScheduler
Action = Apply | Delete | Put


def plan(context: Context, view: View, has_certificates: bool = True) -> list[Action]:
    """Return the actions of one pass, in order.

    A new revision waits for its certificates, and what ran before goes on meanwhile.
    """
    observed, pipelines = view.observed, context.spec.num_pipelines
    surroundings = _surroundings(context, observed, pipelines)
    if pipelines and not has_certificates and context.revision not in observed.revisions():
        return [Apply(manifest) for manifest in surroundings]
    ending = _other_revisions(context, observed)
    workloads = _workloads(context, observed, pipelines)
    actions: list[Action] = [Apply(manifest) for manifest in surroundings]
    if not ending:
        actions += [Apply(manifest) for manifest in workloads]
    actions += _live(context, observed, pipelines)
    wanted = {(manifest["kind"], manifest["metadata"]["name"]) for manifest in surroundings + workloads}
    for kind in PRUNED:
        for child in observed.of_kind(kind):
            if (kind, name_of(child)) not in wanted and not is_ending(child):
                actions.append(Delete(child))
    actions += [Delete(old) for old in surplus(observed, context.revision) if not is_ending(old)]
    return actions


def _surroundings(context: Context, observed: Observed, pipelines: int) -> list[dict[str, Any]]:
    optional = (access.disruption_budget(context), access.pod_monitor(context))
    return [
        access.service_account(context),
        services.control_service(context),
        services.client_service(context),
        *access.network_policies(context),
        boot.boot_config_map(context, pipelines),
        controller_revision(context, observed),
        *tls.issued_certificates(context),
        *(manifest for manifest in optional if manifest is not None),
    ]


def _other_revisions(context: Context, observed: Observed) -> list[Object]:
    """Workloads and pods of revisions that are not wanted any more."""
    return [
        child
        for kind in (*WORKLOADS, "Pod")
        for child in observed.of_kind(kind)
        if label(child, names.REVISION_LABEL) != context.revision
    ]


def _workloads(context: Context, observed: Observed, pipelines: int) -> list[dict[str, Any]]:
    deployment, stateful_sets = rendering(context, observed)
    pods = max(pipelines, _held_pipelines(context, observed)) if pipelines else 0
    deployment["spec"] = deployment["spec"] | {"replicas": 1 if pipelines else 0}
    for stateful_set in stateful_sets:
        stateful_set["spec"] = stateful_set["spec"] | {"replicas": pods}
    return [*stateful_sets, deployment]


def _held_pipelines(context: Context, observed: Observed) -> int:
    """Return how many pipelines the master may still use; their pods stay.

    A running master that did not answer may use all that have pods: a timeout of one call must not end pods whose
    pipeline is still in the topology.
    """
    report = observed.reports.get(context.revision)
    if report is not None:
        return len(report.pipelines)
    if observed.admin_port(context.revision) is None:
        return 0
    return max(
        (
            int(stateful_set["spec"]["replicas"])
            for stateful_set in observed.of_kind("StatefulSet")
            if label(stateful_set, names.REVISION_LABEL) == context.revision
        ),
        default=0,
    )


def unknown_to_master(context: Context, observed: Observed) -> list[str]:
    """Return what the spec asks for and the running master is too old to know, as sentences."""
    report = observed.reports.get(context.revision)
    if report is None:
        return []
    messages = (boot.topology(context, max(1, context.spec.num_pipelines)), boot.scheduler_knobs(context))
    fields = [field for message in messages for field in message.unknown_to(report.contract_version)]
    return [f"the master of revision {context.revision} is too old for {field}" for field in fields]


def _live(context: Context, observed: Observed, pipelines: int) -> list[Action]:
    """Brings a running master to the wanted topology and knobs, as far as a master of its version knows them."""
    report = observed.reports.get(context.revision)
    if report is None:
        return []
    actions: list[Action] = []
    version = report.contract_version
    if pipelines and (topology := boot.topology(context, pipelines).known_to(version)) != report.topology:
        actions.append(PutTopology(context.revision, topology))
    if (knobs := boot.scheduler_knobs(context).known_to(version)) != report.scheduler:
        actions.append(PutScheduler(context.revision, knobs))
    return actions
