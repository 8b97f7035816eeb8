"""Plans the actions of a pass from desired and observed state. Pure: execute.py executes the actions.
The view holds the children, the masters' reports, the diagnosis of each pod, and the time of the pass.

Every pass plans from scratch, independent of the event that triggered it. Order within a pass:
0. delete pods on lost nodes by force (lost_nodes.py), and those of pipelines without progress (recovery.py): what the
   API server thinks of an edit must not stop that;
1. check the objects of a new revision by a dry run: if the API server rejects one, nothing is changed;
2. apply what pods need before they start (account, Services, policies, boot ConfigMap, stored rendering);
3. apply StatefulSets (with 0 replicas if the revision is stopped, recovery.py) and Deployment of the desired revision,
   and the live settings of the running master;
4. remove pipelines of outdated revisions, as far as the desired revision serves (rollout.py), or, for
   `rolloutStrategy.type: Recreate`, end the outdated revisions before step 3;
5. delete children that are no longer desired;
6. apply the autoscaler, when one of another kind is gone (scaling.py). Step 1 checks neither it nor the kinds of
   UNCHECKED, because their rejection must not stop a revision.
A pipeline is removed from the master's topology before its pods are deleted, so that its requests move to the other
pipelines first. Only `suspend` ends the master of the desired revision: without pipelines it keeps requests until one
serves (minReplicas 0, sleep.py), or refuses them with the reason (replicas 0).
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from orca_contract.state import StateReport
from orca_contract.topology import Topology

from orca_operator import names
from orca_operator.actions import Action, Apply, ApplyAutoscaler, Check, Delete, PutScheduler, PutTopology
from orca_operator.adoption import is_orphan
from orca_operator.diagnose import View
from orca_operator.lost_nodes import forced_deletions
from orca_operator.manifests import access, boot, services, tls
from orca_operator.manifests.context import Context
from orca_operator.observe import Object, Observed, is_ending, label, name_of, owner
from orca_operator.outdated import WORKLOADS, engine, is_dispensable, outdated_revisions, shrink, used_pipelines
from orca_operator.recovery import NO_RECOVERY, Recovery
from orca_operator.revision import controller_revision, kept_boot, rendering, stale_rendering, surplus
from orca_operator.rollout import Shares, shares
from orca_operator.scaling import replaced_kind, wanted_autoscaler
from orca_operator.sleep import CLOSED, desired_pipelines, scales_to_zero

AT_START = ("stallTimeoutSeconds", "recoveryTimeoutSeconds", "admission")
"""Knobs that a master of a version before LIVE_TIMEOUTS_VERSION reads only from its boot ConfigMap."""
TO_ZERO_VERSION = 6
"""Version of the contract from which on masters run without pipelines."""
UNCHECKED = ("PodDisruptionBudget", "PodMonitor")
"""Kinds of objects that no pod needs: that they are rejected must not stop a new revision."""
OPTIONAL = (*UNCHECKED, "NetworkPolicy", "Certificate")
"""Kinds of objects without which a revision that has started serves on. A new one waits until they are accepted."""
PRUNED = (
    *WORKLOADS,
    "ConfigMap",
    "NetworkPolicy",
    "PodDisruptionBudget",
    "PodMonitor",
    "HorizontalPodAutoscaler",
    "ScaledObject",
    "Certificate",
    "Service",
    "ServiceAccount",
)


def plan(
    context: Context,
    view: View,
    has_certificates: bool = True,
    serving_revision: str = "",
    recovery: Recovery = NO_RECOVERY,
) -> list[Action]:
    """Return the actions of one pass, in order.

    A new revision waits for its certificates; the previous revision runs meanwhile. `serving_revision` is the revision
    that served last, "" if none has served yet.
    """
    observed, outdated = view.observed, outdated_revisions(context, view.observed)
    steps = _steps(context, view, outdated, serving_revision)
    surroundings = _surroundings(context, observed, steps)
    workloads = _workloads(context, observed, steps.new, recovery.stopped == context.revision)
    is_new = context.revision not in observed.revisions()
    lacks_certificates = is_new and not context.spec.suspend and not has_certificates
    stale, autoscaler = stale_rendering(context, observed), wanted_autoscaler(context)
    writable = [] if replaced_kind(context, observed) else autoscaler
    grace = timedelta(seconds=context.spec.recovery_policy.node_failure_grace_seconds)
    actions: list[Action] = [*forced_deletions(observed, view.nodes, grace, view.now), *recovery.replacements]
    actions += _checks(surroundings + workloads, stale) if is_new else []
    actions += [Delete(stored) for stored in stale]
    optional = UNCHECKED if is_new else OPTIONAL
    actions += [Apply(manifest, manifest["kind"] in optional) for manifest in surroundings]
    if lacks_certificates and _desired(context, observed):
        return actions
    if not lacks_certificates and not _waits(context, observed, steps.new):
        actions += [Apply(manifest) for manifest in workloads]
    actions += _live(context, observed, steps.new)
    for revision, kept in steps.old.items():
        actions += shrink(context, view, revision, kept)
    desired = {(manifest["kind"], manifest["metadata"]["name"]) for manifest in surroundings + workloads + autoscaler}
    for kind in PRUNED:
        for child in observed.of_kind(kind):
            if owner(child).get("kind") != names.KIND and not is_orphan(child, context.name):
                continue
            is_needed = label(child, names.REVISION_LABEL) in outdated or (kind == "Certificate" and bool(outdated))
            if (kind, name_of(child)) not in desired and not is_needed and not is_ending(child):
                actions.append(Delete(child))
    actions += [Delete(old) for old in surplus(observed, {context.revision, *outdated}) if not is_ending(old)]
    actions += [ApplyAutoscaler(manifest) for manifest in writable]
    return actions


def _checks(manifests: list[dict[str, Any]], replaced: list[Object]) -> list[Action]:
    """Return dry runs of what pods need, without objects to be replaced: a dry run would be an immutable change."""
    places = {(stored["kind"], name_of(stored)) for stored in replaced}
    checked = [
        each
        for each in manifests
        if each["kind"] not in UNCHECKED and (each["kind"], each["metadata"]["name"]) not in places
    ]
    return [
        Check(each) for each in checked + [_as_deployment(each) for each in checked if each["kind"] == "StatefulSet"]
    ]


def _as_deployment(stateful_set: dict[str, Any]) -> dict[str, Any]:
    """Return a Deployment with the pods of a StatefulSet, for a dry run: API servers check only a Deployment's pods."""
    spec = {key: stateful_set["spec"][key] for key in ("selector", "template")}
    return {**stateful_set, "kind": "Deployment", "spec": spec}


def _steps(context: Context, view: View, outdated: list[str], serving_revision: str) -> Shares:
    """Return the pipelines of this pass by revision."""
    strategy, pipelines = context.spec.rollout_strategy, _desired(context, view.observed)
    if not pipelines:
        return Shares(pipelines, dict.fromkeys(outdated, 0))
    old = [engine(view, revision, is_dispensable(context, view, revision, serving_revision)) for revision in outdated]
    if strategy.recreates:
        return Shares(pipelines, {each.revision: each.place if each.waiting else 0 for each in old})
    return shares(pipelines, strategy.bounds(pipelines), engine(view, context.revision), old)


def _desired(context: Context, observed: Observed) -> int:
    return desired_pipelines(context.spec, context.revision, observed)


def _waits(context: Context, observed: Observed, pipelines: int) -> bool:
    """Whether the workloads of the revision wait for the end of other pods."""
    if context.spec.rollout_strategy.recreates:
        return _others_exist(context, observed)
    return context.revision not in observed.revisions() and pipelines == 0 < _desired(context, observed)


def _surroundings(context: Context, observed: Observed, steps: Shares) -> list[dict[str, Any]]:
    optional = (access.disruption_budget(context), access.pod_monitor(context))
    return [
        access.service_account(context),
        services.control_service(context),
        services.client_service(context, steps.replaced),
        *access.network_policies(context),
        boot.boot_config_map(context, steps.new, kept_boot(context, observed)),
        controller_revision(context, observed),
        *tls.issued_certificates(context),
        *(manifest for manifest in optional if manifest is not None),
    ]


def _others_exist(context: Context, observed: Observed) -> bool:
    """Whether an outdated revision still has workloads or pods."""
    return any(
        label(child, names.REVISION_LABEL) not in (context.revision, "")
        for kind in (*WORKLOADS, "Pod")
        for child in observed.of_kind(kind)
    )


def _workloads(context: Context, observed: Observed, pipelines: int, is_stopped: bool) -> list[dict[str, Any]]:
    deployment, stateful_sets = rendering(context, observed)
    in_order = not context.spec.suspend and (pipelines or _can_be_empty(context, observed))  # else all pods go at once
    pods = max(pipelines, used_pipelines(observed, context.revision)) if in_order and not is_stopped else 0
    deployment["spec"] = deployment["spec"] | {"replicas": 1 if _has_master(context, observed) else 0}
    for stateful_set in stateful_sets:
        stateful_set["spec"] = stateful_set["spec"] | {"replicas": pods}
    return [*stateful_sets, deployment]


def unknown_to_master(context: Context, observed: Observed) -> list[str]:
    """Return a sentence for each field of the spec that the running master is too old to support."""
    report = observed.reports.get(context.revision)
    if report is None:
        return []
    kept = kept_boot(context, observed)
    topology = boot.topology(context, max(1, context.spec.num_pipelines), kept)
    messages = (topology, boot.scheduler_knobs(context, kept))
    unknown = [field for message in messages for field in message.unknown_to(report.contract_version)]
    fields = [field for field in unknown if field not in AT_START]
    if scales_to_zero(context.spec) and report.contract_version < TO_ZERO_VERSION:
        fields.append("autoscaling.minReplicas: 0 and keeps one pipeline; a new value of spec.restart.id replaces it")
    return [f"the master of revision {context.revision} is too old for {field}" for field in fields]


def _live(context: Context, observed: Observed, pipelines: int) -> list[Action]:
    """Return the changes to the desired topology and scheduler settings that the master's version supports."""
    report = observed.reports.get(context.revision)
    if report is None:
        return []
    actions: list[Action] = []
    version, kept = report.contract_version, kept_boot(context, observed)
    topology = _topology(context, observed, pipelines, report)
    if topology is not None and topology.known_to(version) != report.topology:
        actions.append(PutTopology(context.revision, topology.known_to(version)))
    change = PutScheduler(context.revision, boot.scheduler_knobs(context, kept).known_to(version))
    if change.body != change.reported(report):
        actions.append(change)
    return actions


def _topology(context: Context, observed: Observed, pipelines: int, report: StateReport) -> Topology | None:
    """Return the topology that the desired revision's master is to have, None if the present one stays for now."""
    kept = kept_boot(context, observed)
    if pipelines:
        return boot.topology(context, pipelines, kept)
    wanted = _desired(context, observed)
    if wanted or context.spec.suspend or not _can_be_empty(context, observed):  # `wanted`: it waits for its place
        return None
    if scales_to_zero(context.spec):
        return boot.topology(context, 0, kept)
    answers = report.running or report.waiting  # then its pipelines stay until it has answered all requests
    last = report.topology.pipelines if report.topology is not None and answers else []
    return boot.topology(context, 0, kept).model_copy(update={"pipelines": last, "closed": CLOSED})


def _has_master(context: Context, observed: Observed) -> bool:
    """Whether the desired revision has a master: also without pipelines, unless the master is too old for that."""
    if context.spec.suspend:
        return False
    if _desired(context, observed):
        return True
    if (report := observed.reports.get(context.revision)) is not None:
        return report.contract_version >= TO_ZERO_VERSION
    live = observed.find("Deployment", names.master(context.name, context.revision))
    return live is None or int(live["spec"]["replicas"]) > 0


def _can_be_empty(context: Context, observed: Observed) -> bool:
    """Whether the master of the desired revision can run without pipelines."""
    report = observed.reports.get(context.revision)
    return report is None or report.contract_version >= TO_ZERO_VERSION
