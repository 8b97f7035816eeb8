"""Builder of the ScaledObject of `autoscaling.backend: keda` (https://keda.sh/docs/latest/reference/scaledobject-spec).

Its triggers of type `metrics-api` read the master's metrics through the client Service, so that nothing but KEDA is
needed. The format `prometheus` of this trigger exists since KEDA 2.14.
"""

from __future__ import annotations

from typing import Any

from orca_contract import routes

from orca_operator import names
from orca_operator.api_autoscaling import Autoscaling
from orca_operator.manifests.context import Context
from orca_operator.manifests.hpa import running_target, scale_target, scaling_behavior

QUEUE_METRIC = "orca:num_requests_waiting"
CACHE_METRIC = "orca:kv_cache_usage_perc"
RUNNING_METRIC = "orca:num_requests_running"
ALL_PLACES = 100
"""Percentage at which full pipelines stay although no request waits, and none is added before batches are full."""
PAUSED = "autoscaling.keda.sh/paused"
"""Annotation that stops KEDA: without pods the triggers fail, and a fallback would set `replicas`."""


def scaled_object(context: Context, autoscaling: Autoscaling) -> dict[str, Any]:
    """Return the ScaledObject of API keda.sh/v1alpha1."""
    running = running_target(context, autoscaling.target_batch_usage_percent or ALL_PLACES)
    spec: dict[str, Any] = {
        "scaleTargetRef": scale_target(context),
        "minReplicaCount": autoscaling.effective_min_replicas,
        "maxReplicaCount": autoscaling.max_replicas,
        "cooldownPeriod": autoscaling.scale_down_window,
        "advanced": {"horizontalPodAutoscalerConfig": {"behavior": scaling_behavior(autoscaling)}},
        "triggers": [
            # Requests are a sum, hence per pipeline (AverageValue); the fraction of held slots is a mean.
            _trigger(context, "queue", QUEUE_METRIC, "AverageValue", str(autoscaling.target_queue_depth)),
            _trigger(context, "kv-cache", CACHE_METRIC, "Value", _fraction(autoscaling.target_kv_cache_usage_percent)),
            _trigger(context, "running", RUNNING_METRIC, "AverageValue", str(running)),
        ],
    }
    metadata = context.metadata(context.name, names.labels(context.name))
    if context.spec.suspend:
        metadata["annotations"] = {PAUSED: "true"}
    return {
        "apiVersion": "keda.sh/v1alpha1",
        "kind": "ScaledObject",
        "metadata": metadata,
        "spec": spec | _keda(autoscaling),
    }


def _keda(autoscaling: Autoscaling) -> dict[str, Any]:
    """Return the fields that are passed through.

    `idleReplicaCount` is not: KEDA supports only 0, at which the master refuses requests, so that no metric brings a
    pipeline back.
    """
    keda, passed = autoscaling.keda, dict[str, Any]()
    if keda is None:
        return passed
    if keda.polling_interval_seconds is not None:
        passed["pollingInterval"] = keda.polling_interval_seconds
    if keda.fallback is not None:
        passed["fallback"] = keda.fallback.model_dump(by_alias=True, exclude_none=True)
    return passed


def _trigger(context: Context, name: str, metric: str, metric_type: str, target: str) -> dict[str, Any]:
    url = f"http://{context.name}.{context.namespace}.svc{routes.METRICS}"
    metadata = {"url": url, "format": "prometheus", "valueLocation": metric, "targetValue": target}
    return {"type": "metrics-api", "name": name, "metricType": metric_type, "metadata": metadata}


def _fraction(percent: int) -> str:
    return f"{percent / 100:g}"
