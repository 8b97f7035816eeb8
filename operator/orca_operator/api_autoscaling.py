"""`spec.autoscaling`: the bounds and targets of an autoscaler, which then sets `spec.replicas`.

manifests/hpa.py and manifests/scaled_object.py render the autoscaler, scaling.py reports on it.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from orca_operator import pod_api
from orca_operator.api_types import Part

LONGEST_WINDOW = 3600
"""Longest stabilization window of an HPA, in seconds."""


class Fallback(Part):
    """The number of pipelines while KEDA cannot read the metrics."""

    failure_threshold: Annotated[int, Field(ge=0, le=1000)] = Field(
        description="Number of consecutive failures after which the fallback applies."
    )
    replicas: Annotated[int, Field(ge=0, le=1000)] = Field(description="Number of pipelines.")
    behavior: Literal["static", "currentReplicas", "currentReplicasIfHigher", "currentReplicasIfLower"] | None = Field(
        None, description="How `replicas` and the current number are combined; static by default. Needs KEDA 2.17."
    )


class Keda(Part):
    """Fields of the ScaledObject that an HPA does not have."""

    polling_interval_seconds: Annotated[int, Field(ge=1, le=86400)] | None = Field(
        None, description="Interval of KEDA's own checks, by default 30. KEDA's HPA reads the metrics every 15 s."
    )
    idle_replica_count: Annotated[int, Field(ge=0, le=999)] | None = Field(
        None,
        description="Has no effect: KEDA supports only 0, at which the master refuses requests, so that no metric "
        "brings a pipeline back. Use minReplicas: 0.",
    )
    fallback: Fallback | None = Field(
        None, description="The number of pipelines while the metrics cannot be read. Needs KEDA 2.17."
    )


class Autoscaling(Part):
    """Bounds and targets of automatic scaling."""

    min_replicas: Annotated[int, Field(ge=0, le=1000)] = Field(
        1, description="Minimum number of pipelines. 0: none while no request comes."
    )
    max_replicas: Annotated[int, Field(ge=1, le=1000)] = Field(1, description="Maximum number of pipelines.")
    backend: Literal["hpa", "keda"] = Field(
        "hpa",
        description="Kind of the autoscaler: hpa is a HorizontalPodAutoscaler (autoscaling/v2), which needs an adapter "
        "for custom metrics; keda is a ScaledObject, which needs KEDA.",
    )
    target_queue_depth: Annotated[int, Field(ge=1)] = Field(
        8, description="Target number of waiting requests per pipeline."
    )
    target_kv_cache_usage_percent: Annotated[int, Field(ge=1, le=100)] = Field(
        80, alias="targetKVCacheUsagePercent", description="Target percentage of K/V slots in use."
    )
    target_batch_usage_percent: Annotated[int, Field(ge=1, le=100)] | None = Field(
        None,
        description="Target percentage of the places in batches that requests hold: a pipeline has "
        "scheduler.maxBatchSize for each of its partitions. Default: 100 with keda, which keeps as many pipelines as "
        "can run all requests at the same time; none with hpa, which needs a rule of the adapter for it.",
    )
    scale_down_delay_seconds: Annotated[int, Field(ge=0, le=86400)] = Field(
        300,
        description="Time of low load before a pipeline is removed; over 3600: 3600, but the last pipeline of "
        "minReplicas: 0 stays for the whole time.",
    )
    behavior: pod_api.Behavior | None = Field(
        None,
        description="Scaling policies, see HorizontalPodAutoscalerBehavior of the API autoscaling/v2; "
        "scaleDown.stabilizationWindowSeconds overrides scaleDownDelaySeconds.",
    )
    keda: Keda | None = Field(None, description="For backend keda: further fields of the ScaledObject.")

    @property
    def effective_min_replicas(self) -> int:
        """The minimum of the autoscaler: at least 1, because an HPA of 0 pipelines does nothing."""
        return max(1, self.min_replicas)

    @property
    def scale_down_window(self) -> int:
        """The delay in force, in seconds. Specs that are stored since the delay had no effect may have a longer one."""
        return min(self.scale_down_delay_seconds, LONGEST_WINDOW)

    @property
    def not_implemented(self) -> list[str]:
        """The YAML paths and values that have no effect."""
        idle = None if self.keda is None else self.keda.idle_replica_count
        return [] if idle is None else [f"autoscaling.keda.idleReplicaCount: {idle}"]
