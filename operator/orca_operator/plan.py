"""Plans the actions of a pass from desired and observed state. Pure: execute.py executes the actions.
The view holds the children, the masters' reports, the diagnosis of each pod, and the time of the pass.

Every pass plans from scratch, independent of the event that triggered it. Order within a pass:
1. apply what pods need before they start (account, Services, policies, boot ConfigMap, stored rendering);
2. delete an outdated revision, its pods included, before the next step (`rolloutStrategy.type: Recreate`);
3. apply StatefulSets and Deployment of the desired revision, and the live settings of the running master;
4. delete children that are no longer desired.
A pipeline is removed from the master's topology before its pods are deleted, so that its requests move to the other
pipelines first.
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
        """Return the part of a report that this change sets."""
        return report.topology


@dataclass(frozen=True, slots=True)
class PutScheduler:
    """`PUT /scheduler` to a revision's master."""

    route: ClassVar[str] = routes.SCHEDULER
    revision: str
    body: SchedulerKnobs

    @staticmethod
    def reported(report: StateReport) -> SchedulerKnobs | None:
        """Return the part of a report that this change sets."""
        return report.scheduler


Put = PutTopology | PutScheduler
Action = Apply | Delete | Put


def plan(context: Context, view: View, has_certificates: bool = True) -> list[Action]:
    """Return the actions of one pass, in order.

    A new revision waits for its certificates; the previous revision runs meanwhile.
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
    desired = {(manifest["kind"], manifest["metadata"]["name"]) for manifest in surroundings + workloads}
    for kind in PRUNED:
        for child in observed.of_kind(kind):
            if (kind, name_of(child)) not in desired and not is_ending(child):
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
    """Return the workloads and pods of outdated revisions."""
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
    """Return how many pipelines the master may still use, whose pods must stay.

    A running master that did not answer may use every pipeline that has pods: a timeout of one call must not delete
    pods whose pipeline is still in the topology.
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
    """Return a sentence for each field of the spec that the running master is too old to support."""
    report = observed.reports.get(context.revision)
    if report is None:
        return []
    messages = (boot.topology(context, max(1, context.spec.num_pipelines)), boot.scheduler_knobs(context))
    fields = [field for message in messages for field in message.unknown_to(report.contract_version)]
    return [f"the master of revision {context.revision} is too old for {field}" for field in fields]


def _live(context: Context, observed: Observed, pipelines: int) -> list[Action]:
    """Return the changes to the desired topology and scheduler settings that the master's version supports."""
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
