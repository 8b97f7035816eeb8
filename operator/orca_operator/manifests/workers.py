"""The workers of a revision: one StatefulSet per inter-layer partition; pod r of each forms pipeline r."""

from __future__ import annotations

from typing import Any

from orca_operator import names
from orca_operator.api import Spec
from orca_operator.diagnose import GPU
from orca_operator.manifests.context import Context
from orca_operator.manifests.placement import pipeline_affinity
from orca_operator.manifests.pod import pod_template, resources
from orca_operator.manifests.tls import pod_tls
from orca_operator.pod_overlay import overlaid

DEFAULT_REQUESTS = {"cpu": "500m", "memory": "1Gi"}
MEMORY_REQUEST = "ORCA_MEMORY_REQUEST"
"""Environment variable with the container's memory request in bytes; 0 if there is none."""
LOCK_MEMORY = "IPC_LOCK"
"""Capability to lock memory of any size: RDMA devices register locked memory (ibv_reg_mr)."""
MASTER_END_SECONDS = 5
"""Seconds from the end of a master's drain to the end of its process."""
NO_MESH = {"sidecar.istio.io/inject": "false"}
"""With service-mesh sidecars, NCCL hangs (NVIDIA/nccl#1638)."""


def worker_stateful_sets(context: Context) -> list[dict[str, Any]]:
    """Return the StatefulSets in the order of the partitions; plan.py sets their replicas."""
    count = context.spec.parallelism.pipeline_parallel_size
    return [_stateful_set(context, partition, count) for partition in range(count)]


def devices(spec: Spec) -> dict[str, str]:
    """Return the number of devices of a worker pod, by resource name; `worker.resources` does not change it."""
    counts = {GPU: str(spec.parallelism.tensor_parallel_size)} if spec.workers_device == "cuda" else {}
    return counts | ({spec.communication.rdma_resource: "1"} if spec.communication.rdma_resource else {})


def _memory_request(spec: Spec, resources: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the variable from which a worker sizes its K/V memory (docs/contracts.md, section 2).

    Empty for GPUs, where the K/V cache is in device memory, and with a memory limit, which a worker reads from its
    cgroup.
    """
    if spec.workers_device == "cuda" or "memory" in resources.get("limits", {}):
        return []
    request = {"containerName": names.WORKER, "resource": "requests.memory", "divisor": "1"}
    return [{"name": MEMORY_REQUEST, "valueFrom": {"resourceFieldRef": request}}]


def _stateful_set(context: Context, partition: int, count: int) -> dict[str, Any]:
    spec, settings = context.spec, context.spec.worker
    labels = names.worker_labels(context.name, context.revision, partition)
    own_tolerations = []
    if spec.workers_device == "cuda":
        own_tolerations = [{"key": GPU, "operator": "Exists", "effect": "NoSchedule"}]
    capabilities = [LOCK_MEMORY] if spec.communication.rdma_resource else []
    limits = resources(settings, devices(spec), DEFAULT_REQUESTS)
    tls = pod_tls(context, names.WORKER)
    container = {
        "name": names.WORKER,
        "image": settings.image or context.images.worker,
        "args": [
            "worker", "--listen", f"0.0.0.0:{names.WORKER_PORT}", "--probe-port", str(names.PROBE_PORT),
            # A worker gets SIGTERM at the same time as its master, and must outlive the master's drain.
            "--drain-timeout", str(spec.drain_timeout_seconds + MASTER_END_SECONDS),
            *tls.options,
            *settings.extra_args,
        ],
        "ports": [
            {"name": "control", "containerPort": names.WORKER_PORT, "protocol": "TCP"},
            {"name": "probes", "containerPort": names.PROBE_PORT, "protocol": "TCP"},
        ],
        "env": _memory_request(spec, limits),
        "resources": limits,
        "volumeMounts": [{"name": "shared-memory", "mountPath": "/dev/shm"}, *tls.mounts],
    }  # fmt: skip
    shared_memory = {"medium": "Memory", "sizeLimit": settings.shared_memory_size}
    own = {"tolerations": own_tolerations + settings.tolerations, "affinity": pipeline_affinity(context)}
    template = pod_template(
        spec,
        settings.model_copy(update=own),
        context.name,
        labels,
        NO_MESH,
        container,
        [{"name": "shared-memory", "emptyDir": shared_memory}, *tls.volumes],
        fetch_options=["--partition", f"{partition}/{count}"],
        capabilities=capabilities,
    )
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": context.metadata(names.partition(context.name, context.revision, partition), labels),
        "spec": {
            "replicas": 0,
            "serviceName": names.control(context.name),
            "podManagementPolicy": "Parallel",
            "updateStrategy": {"type": "OnDelete"},
            "revisionHistoryLimit": 0,
            "selector": {"matchLabels": names.worker_selector(context.name, context.revision, partition)},
            "template": overlaid(template, settings),
        },
    }
