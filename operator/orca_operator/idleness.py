"""How many pipelines an OrcaDeployment is to have now: `replicas`, or none while no request comes. Pure.

With `autoscaling.minReplicas: 0` the operator itself changes between no pipeline and one; an autoscaler acts above that
and never sets `replicas` to 0. Nothing is stored: the master reports how long it has had no request, and a deployment
without pipelines stays so until a request comes. The master keeps running, and requests wait in its queue
(docs/contracts.md, section 8).
"""

from __future__ import annotations

from orca_contract.state import EngineState

from orca_operator.api import Spec
from orca_operator.observe import Observed, has_no_pipelines, holds_requests
from orca_operator.outdated import held_pipelines


def desired_pipelines(spec: Spec, revision: str, observed: Observed) -> int:
    """Return the number of pipelines that the spec's `revision` is to have."""
    if spec.suspend or not spec.scales_to_zero:
        return spec.num_pipelines
    return 0 if _is_idle(spec, revision, observed) else max(1, spec.replicas)


def is_asleep(spec: Spec, revision: str, observed: Observed) -> bool:
    """Whether the deployment is to have a master and no pipelines."""
    return spec.scales_to_zero and not spec.suspend and not desired_pipelines(spec, revision, observed)


def _is_idle(spec: Spec, revision: str, observed: Observed) -> bool:
    if spec.replicas > 1 or observed.revisions() != {revision}:  # a new revision first shows that it serves
        return False
    report = observed.reports.get(revision)
    if report is None:  # one call without an answer changes nothing; a master that starts needs a pipeline
        return held_pipelines(observed, revision) == 0 and observed.admin_port(revision) is not None
    if holds_requests(report):
        return False
    if has_no_pipelines(report):
        return True
    if not report.idle or report.idle_seconds is None or report.state != EngineState.SERVING:
        return False
    assert spec.autoscaling is not None
    return report.idle_seconds >= spec.autoscaling.scale_down_delay_seconds
