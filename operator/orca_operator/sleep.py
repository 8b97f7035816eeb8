"""Which revisions sleep, wake up, or stay as they are, with `autoscaling.minReplicas: 0`. Pure.

A revision sleeps while its master runs without pipelines, as the waiting room of requests. Nothing is stored: the
reports of the masters decide in every pass (docs/contracts.md, section 8).

- A revision falls asleep if it is the spec's and the only one, `replicas` is at most 1, and its master has served for
  `scaleDownDelaySeconds` without an accepted request (`desired_pipelines`).
- It wakes up when requests have come while it slept, whatever has become of the spec meanwhile (`wake_ups`).
- An outdated revision stays while those requests are unfinished, or while it sleeps and its successor does not serve
  yet (rollout.py).

An autoscaler acts above one pipeline and never sets `replicas` to 0.
"""

from __future__ import annotations

import json

from orca_contract.state import EngineState, StateReport
from orca_contract.topology import Topology

from orca_operator import names
from orca_operator.actions import Action, PutTopology, Scale
from orca_operator.api import Spec
from orca_operator.observe import Observed, is_ending, label

CLOSED = "spec.replicas is 0"
"""Why the master of a deployment without pipelines refuses requests."""


def scales_to_zero(spec: Spec) -> bool:
    """Whether no pipeline is to run while no request comes."""
    return spec.autoscaling is not None and spec.autoscaling.min_replicas == 0


def sleeps(report: StateReport) -> bool:
    """Whether a master without pipelines waits for the first request."""
    topology = report.topology
    return topology is not None and not topology.pipelines and not topology.closed and not report.has_backlog


def desired_pipelines(spec: Spec, revision: str, observed: Observed, stopped: str = "") -> int:
    """Return the number of pipelines that the spec's `revision` is to have.

    The revision `stopped`, which restarts too often (recovery.py), has no pods either; it does not sleep.
    """
    if spec.suspend or not scales_to_zero(spec):
        return spec.num_pipelines
    return 0 if revision != stopped and _is_idle(spec, revision, observed) else max(1, spec.replicas)


def _is_idle(spec: Spec, revision: str, observed: Observed) -> bool:
    assert spec.autoscaling is not None
    if spec.replicas > 1 or observed.revisions() != {revision}:  # a new revision first shows that it serves
        return False
    report = observed.reports.get(revision)
    if report is None:  # one call without an answer changes nothing; a master that starts needs a pipeline
        return observed.held_pipelines(revision) == 0 and observed.admin_port(revision) is not None
    if sleeps(report):
        return True
    if not report.idle or report.idle_seconds is None or report.state != EngineState.SERVING:
        return False
    return report.idle_seconds >= spec.autoscaling.scale_down_delay_seconds


def wake_ups(observed: Observed, stopped: str = "") -> list[Action]:
    """Return the changes that give one pipeline to each master with a backlog that has none, or no pods for it.

    The changes need no spec: the pipeline is the first one of the revision's boot ConfigMap, and its pods are those of
    the revision's StatefulSets. The revision `stopped`, which restarts too often (recovery.py), gets none.
    """
    actions = list[Action]()
    for revision, report in sorted(observed.reports.items()):
        if report.topology is None or not report.has_backlog or revision == stopped:
            continue
        actions += [
            Scale(stateful_set, 1)
            for stateful_set in observed.of_kind("StatefulSet")
            if label(stateful_set, names.REVISION_LABEL) == revision
            and not is_ending(stateful_set)
            and not int(stateful_set["spec"]["replicas"])
        ]
        for boot in observed.of_kind("ConfigMap"):
            if label(boot, names.REVISION_LABEL) == revision and not report.topology.pipelines:
                first = Topology.model_validate(json.loads(boot["data"]["topology.json"])).pipelines[:1]
                actions.append(PutTopology(revision, report.topology.model_copy(update={"pipelines": first})))
    return actions
