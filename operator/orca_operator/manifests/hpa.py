"""Builder of the HorizontalPodAutoscaler of `autoscaling.backend: hpa`.

All metrics are Object metrics of the OrcaDeployment (custom.metrics.k8s.io), because the queue is the master's, and
the pods that the scale subresource counts are workers. docs/how-to/autoscale.md has the rules of an adapter.
"""

from __future__ import annotations

from typing import Any

from orca_operator import names
from orca_operator.api_autoscaling import Autoscaling
from orca_operator.manifests.context import Context

QUEUE_METRIC = "orca_num_requests_waiting"
CACHE_METRIC = "orca_kv_cache_usage_perc"
RUNNING_METRIC = "orca_num_requests_running"


def horizontal_pod_autoscaler(context: Context, autoscaling: Autoscaling) -> dict[str, Any]:
    """Return the HPA of API autoscaling/v2, which Kubernetes serves since 1.23."""
    # Requests are a sum, hence per pipeline (AverageValue); the fraction of held K/V slots is a mean (Value).
    queue = {"type": "AverageValue", "averageValue": str(autoscaling.target_queue_depth)}
    cache = {"type": "Value", "value": _percent(autoscaling.target_kv_cache_usage_percent)}
    metrics = [_object_metric(context, QUEUE_METRIC, queue), _object_metric(context, CACHE_METRIC, cache)]
    # Not by default: without the adapter's rule for it, an HPA would remove no pipeline any more.
    if (percent := autoscaling.target_batch_usage_percent) is not None:
        running = {"type": "AverageValue", "averageValue": str(running_target(context, percent))}
        metrics.append(_object_metric(context, RUNNING_METRIC, running))
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": context.metadata(context.name, names.labels(context.name)),
        "spec": {
            "scaleTargetRef": scale_target(context),
            "minReplicas": autoscaling.effective_min_replicas,
            "maxReplicas": autoscaling.max_replicas,
            "metrics": metrics,
            "behavior": scaling_behavior(autoscaling),
        },
    }


def scale_target(context: Context) -> dict[str, str]:
    """Return the reference to the OrcaDeployment, whose scale subresource the autoscaler reads and writes."""
    return {"apiVersion": names.API_VERSION, "kind": names.KIND, "name": context.name}


def running_target(context: Context, percent: int) -> int:
    """Return the running requests per pipeline that are `percent` of its places, at least 1.

    The place in a spare iteration (contracts.md, section 2) does not count: requests that do not fill it wait.
    """
    places = context.spec.scheduler.max_batch_size * context.spec.parallelism.pipeline_parallel_size
    return max(1, places * percent // 100)


def scaling_behavior(autoscaling: Autoscaling) -> dict[str, Any]:
    """Return the HPA's behavior: the user's policies, with scaleDownDelaySeconds where they set no window."""
    given = autoscaling.behavior or {}
    window = {"stabilizationWindowSeconds": autoscaling.scale_down_window}
    return {**given, "scaleDown": {**window, **given.get("scaleDown", {})}}


def _object_metric(context: Context, name: str, target: dict[str, str]) -> dict[str, Any]:
    described = scale_target(context)
    return {"type": "Object", "object": {"describedObject": described, "metric": {"name": name}, "target": target}}


def _percent(value: int) -> str:
    """Return a percentage as a canonical quantity: 80 is 800m, 100 is 1."""
    return "1" if value == 100 else f"{value * 10}m"
