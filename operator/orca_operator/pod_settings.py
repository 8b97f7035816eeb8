"""Pod settings of the OrcaDeployment API: resources, placement, volumes, environment, labels.

Fields that are copied into pods unchanged have the types of `pod_api.py`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from orca_contract.model_choices import Device
from pydantic import Field, WithJsonSchema

from orca_operator import pod_api
from orca_operator.api_types import Annotations, Labels, Part, Quantity, Text
from orca_operator.structural import PRESERVE

OpenObject = Annotated[dict[str, Any], WithJsonSchema({"type": "object", PRESERVE: True})]
"""A map whose fields the CRD does not list."""
VARIABLE = r"\$\([A-Za-z_][A-Za-z0-9_]*\)"
HOST = rf"([A-Za-z0-9._-]+|{VARIABLE}|\[([0-9A-Fa-f:.]+|{VARIABLE})\])"
PORT = "([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])"
COLLECTOR_URL = rf"^(https?|grpc)://{HOST}(:{PORT})?(/[!-~]*)?$"
"""What `orca master --otlp-traces-endpoint` accepts, or with a variable as the host becomes."""


class Resources(Part):
    """Kubernetes resource requests and limits."""

    requests: dict[str, pod_api.Quantity] = Field({}, description="Requests by resource name.")
    limits: dict[str, pod_api.Quantity] = Field({}, description="Limits by resource name.")


class TemplateMetadata(Part):
    """Metadata of a pod template."""

    labels: Labels = Field({}, description="Labels of the pods.")
    annotations: Annotations = Field({}, description="Annotations of the pods.")


class PodTemplate(Part):
    """A partial pod template."""

    metadata: TemplateMetadata | None = Field(None, description="Labels and annotations of the pods.")
    spec: OpenObject = Field(
        {},
        description="Fields of PodSpec of the pod API. Lists merge by their keys; ORCA's containers are `master` or "
        "`worker`, and `fetch-model`.",
    )


class PodSettings(Part):
    """Settings of the pods of one role, which override ORCA's own."""

    image: Text | None = Field(None, description="Image; the operator's default if unset.")
    resources: Resources = Field(Resources(), description="Requests and limits; the operator adds the GPUs of workers.")
    node_selector: Labels = Field({}, description="Labels that the node must have.")
    affinity: pod_api.Affinity = Field({}, description="Scheduling constraints, see Affinity of the pod API.")
    tolerations: list[pod_api.Toleration] = Field(
        [], description="Tolerations in addition to ORCA's own, see Toleration of the pod API."
    )
    priority_class_name: Text | None = Field(None, description="PriorityClass of the pods.")
    runtime_class_name: Text | None = Field(None, description="RuntimeClass of the pods, such as nvidia.")
    volumes: list[pod_api.Volume] = Field([], description="Additional volumes, see Volume of the pod API.")
    volume_mounts: list[pod_api.VolumeMount] = Field(
        [], description="Additional volume mounts, see VolumeMount of the pod API."
    )
    init_containers: list[pod_api.Container] = Field(
        [], description="Containers that run before ORCA's own, see Container of the pod API."
    )
    env: list[pod_api.EnvVar] = Field(
        [],
        description="Additional environment variables, which override ORCA's own; see EnvVar of the pod API. Names "
        "consist of letters, digits, -, _ and ., and do not begin with a digit.",
    )
    labels: Labels = Field({}, description="Additional labels of the pods.")
    annotations: Annotations = Field({}, description="Additional annotations of the pods.")
    extra_args: list[Annotated[str, Field(max_length=1024)]] = Field(
        [], description="Additional options of the command; not those that the operator sets."
    )
    pod_template: PodTemplate | None = Field(
        None, description="Partial pod template, which is merged over ORCA's own with all settings above."
    )


class Journal(Part):
    """Where the master records accepted requests, prompts included. A master with `apiProcesses` has none."""

    enabled: bool = Field(True, description="Whether the master has a journal.")
    claim_name: Text | None = Field(
        None,
        description="PersistentVolumeClaim of the journal, with which requests survive the master pod. If unset, the "
        "journal is in an emptyDir, and requests survive a restart of the container. Not with `master.apiProcesses`.",
    )
    resume_window_seconds: Annotated[int, Field(ge=1, le=86400)] = Field(
        300, description="Time for which a request is kept after its end."
    )


class MasterSettings(PodSettings):
    """The master pod."""

    api_processes: Annotated[int, Field(ge=0, le=64)] = Field(
        0, description="Processes for HTTP and tokenization; 0 runs both in a thread of the scheduler's process."
    )
    journal: Journal | None = Field(
        None, description="The journal of accepted requests, which a restarted master finishes."
    )
    otlp_traces_endpoint: Annotated[str, Field(pattern=COLLECTOR_URL, max_length=1024)] | None = Field(
        None,
        description="OTLP collector that gets a span per request, such as http://collector.monitoring:4317. The host "
        "may be a variable of the container, as in http://$(HOST_IP):4317, in brackets for IPv6. Protocol, headers and "
        "sampler are variables of OpenTelemetry in `env`.",
    )


class Placement(Part):
    """Placement of the pods of a pipeline relative to each other."""

    policy: Literal["colocate", "spread"] = Field(
        description="colocate: all pods of a pipeline in one topology domain; spread: in different domains."
    )
    topology_key: Text = Field(
        "kubernetes.io/hostname", description="Label of nodes whose values are the topology domains."
    )
    when_unsatisfiable: Literal["DoNotSchedule", "ScheduleAnyway"] = Field(
        "DoNotSchedule", description="Whether a pod that cannot be placed so waits, or is scheduled anywhere."
    )


class WorkerSettings(PodSettings):
    """Worker pods."""

    device: Device | None = Field(
        None,
        description="Device of the workers; by default cuda with the nccl backend, and cpu with gloo. A worker on cuda "
        "gets `parallelism.tensorParallelSize` GPUs. With cuda and gloo, activations go through host memory.",
    )
    placement: Placement | None = Field(
        None, description="Placement of the pods of a pipeline relative to each other. Needs Kubernetes 1.31."
    )

    shared_memory_size: Quantity = Field("8Gi", description="Size limit of /dev/shm, which NCCL and the ranks use.")
