"""The spec of an OrcaDeployment (docs/api.md is generated from here; `api_status.py` has the status).

`schema.py` derives structural schemas from these models, and `crd.py` the CustomResourceDefinition from the schemas;
`validation.py` holds the rules over several fields, `pod_settings.py` the settings of pods.
Every field of the spec declares an `Effect` in its annotation, or inherits that of the object that contains it: a
change recreates the pods, is live, applies to the next revision, or is not implemented yet.
"""

from __future__ import annotations

from typing import Annotated, Literal

from orca_contract import rank_environment
from orca_contract.kv_blocks import BLOCK_SIZE
from orca_contract.model_choices import Backend, Device, device_of
from orca_contract.scheduler import AdmissionName, PolicyName
from pydantic import Field

from orca_operator.api_autoscaling import Autoscaling
from orca_operator.api_model import Model
from orca_operator.api_rollout import RolloutStrategy
from orca_operator.api_types import Annotations, Labels, Part, SecretKey, Text
from orca_operator.effects import Effect
from orca_operator.pod_settings import MasterSettings, WorkerSettings

DNS_NAME = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"
Seconds = Annotated[int, Field(ge=1, le=86400)]


class Parallelism(Part):
    """Partitioning of a pipeline: pipelineParallelSize pods per pipeline, tensorParallelSize GPUs per pod."""

    pipeline_parallel_size: Annotated[int, Field(ge=1, le=64)] = Field(
        1, description="Number of inter-layer partitions: StatefulSets, and pods of a pipeline."
    )
    tensor_parallel_size: Annotated[int, Field(ge=1, le=16)] = Field(
        1, description="Number of intra-layer partitions: GPUs of a worker pod."
    )


class Scheduler(Part):
    """Settings of the scheduler (the paper's Algorithm 1)."""

    max_batch_size: Annotated[int, Field(ge=1, le=4096), Effect.LIVE] = Field(
        32, description="Maximum number of requests per iteration."
    )
    max_queue_depth: Annotated[int, Field(ge=1, le=1_000_000), Effect.LIVE] = Field(
        4096, description="Maximum number of waiting requests; further requests get 429."
    )
    max_expected_wait_seconds: Annotated[Seconds | None, Effect.LIVE] = Field(
        None, description="Maximum expected wait of a new request in the queue; others get 429. Default: 60."
    )
    token_budget: Annotated[int, Field(ge=1, le=1_000_000), Effect.LIVE] = Field(
        2048, description="Maximum number of input tokens per iteration; longer prompts are prefilled in chunks."
    )
    target_itl_milliseconds: Annotated[int, Field(ge=0, le=3_600_000)] | None = Field(
        None, description="Target of the time between the tokens of an answer: while answers are generated, iterations "
        "have fewer tokens of prompts. 0: no target. Default: 200 with one partition; with several 0, and prompts are "
        "cut so that iterations take equally long."
    )  # fmt: skip
    admission: Annotated[AdmissionName, Effect.LIVE] = Field(
        "reserve", description="Allocation of K/V slots: for all tokens of a request at once (reserve, as in the "
        "paper), or on demand with preemption (paged)."
    )  # fmt: skip
    policy: Annotated[PolicyName | None, Effect.LIVE] = Field(
        None, description="Order in which requests are served: by arrival (fcfs), or by their field priority and "
        "waiting time (priority). Default: fcfs."
    )  # fmt: skip
    kv_slots: Annotated[int, Field(ge=BLOCK_SIZE)] | None = Field(
        None, description="K/V slots per pipeline, one per token; sized from free memory by default."
    )
    prefix_caching: bool | None = Field(
        None, description="Whether requests of the same API key share the K/V slots of a common prefix. Default: true."
    )
    speculative_tokens: Annotated[int, Field(ge=0, le=63)] | None = Field(
        None, description="Speculative decoding: maximum number of drafted tokens per request and iteration. Drafted "
        "are the tokens of model.draftPath, or without it those that followed the same tokens earlier in prompt or "
        "answer. 0: none. Default: 0."
    )  # fmt: skip


class RecoveryPolicy(Part):
    """Timeouts and limits of failure recovery."""

    stall_timeout_seconds: Annotated[Seconds | None, Effect.LIVE] = Field(
        None,
        description="Timeout of an iteration. Default: 20 times the average of such iterations, at least 10 s; 60 s "
        "and more for the first; 300 s at most.",
    )
    recovery_timeout_seconds: Annotated[Seconds, Effect.LIVE] = Field(
        600,
        description="How long requests wait, without progress, for a lost pipeline to recover; then all pods of the "
        "pipeline are replaced.",
    )
    node_failure_grace_seconds: Annotated[Seconds, Effect.LIVE] = Field(
        60, description="Time after which pods of a lost node are replaced."
    )
    max_restarts: Annotated[int, Field(ge=0, le=1000), Effect.LIVE] = Field(
        10, description="Maximum number of restarts of a pipeline per window; beyond it, the pipeline is given up."
    )
    restart_window_seconds: Annotated[Seconds, Effect.LIVE] = Field(3600, description="Length of the window.")


class Communication(Part):
    """Communication between workers."""

    backend: Backend = Field(
        "nccl", description="nccl for GPUs; gloo for CPUs, or with `worker.device` cuda for GPUs without NCCL."
    )
    socket_interface: Text | None = Field(None, description="Network interface; the pod's first by default.")
    rdma_resource: Text | None = Field(
        None,
        description="Extended resource of RDMA devices, such as rdma/hca; every worker pod gets one device, and the "
        "capability IPC_LOCK.",
    )
    env: dict[str, Annotated[str, Field(max_length=rank_environment.MAX_VALUE_LENGTH)]] = Field(
        {},
        description="Environment variables of NCCL, gloo and OpenMP in the rank processes, such as NCCL_DEBUG. Other "
        "variables, and variables that name a file, a library or a listen address, are rejected.",
    )


class PullSecret(Part):
    """A Secret with registry credentials."""

    name: Text = Field(description="Name of the Secret.")


class ServiceSettings(Part):
    """The Service that clients use."""

    type: Literal["ClusterIP", "NodePort", "LoadBalancer"] = Field("ClusterIP", description="Type of the Service.")
    annotations: Annotations = Field({}, description="Additional annotations.")
    labels: Labels = Field({}, description="Additional labels.")


class Auth(Part):
    """Authentication of clients."""

    api_key_secret_ref: SecretKey | None = Field(
        None,
        description="API keys (bearer tokens), or `sha256:` and the digest of a key, one per line. "
        "The master reloads the Secret when it changes.",
    )


class IssuerReference(Part):
    """A cert-manager issuer."""

    name: Text = Field(description="Name of the issuer.")
    kind: Text = Field("Issuer", description="Issuer, ClusterIssuer, or the kind of an external issuer.")
    group: Text = Field("cert-manager.io", description="API group of the kind.")


class Tls(Part):
    """Mutual TLS between the pods."""

    mode: Literal["selfSigned", "secret", "certManager", "off"] | None = Field(
        None,
        description="Source of the certificates: the operator (selfSigned), a Secret (secret) or cert-manager "
        '(certManager); "off" (with quotes in YAML) means plaintext. If unset, revisions created by this version use '
        "selfSigned; a running revision does not change.",
    )
    secret_name: Annotated[str, Field(pattern=DNS_NAME, max_length=253)] | None = Field(
        None,
        description="For mode secret: Secret with tls.crt, tls.key and ca.crt of all pods. The certificate needs the "
        "DNS names {master,worker,operator}.NAME.NAMESPACE.orca-serving.io.",
    )
    issuer_ref: IssuerReference | None = Field(None, description="For mode certManager: the issuer.")
    enabled: Annotated[bool | None, Effect.NONE] = Field(
        None, description="Deprecated alias of mode selfSigned, which is the default."
    )

    @property
    def source(self) -> Literal["selfSigned", "secret", "certManager", "off"]:
        """The mode of a new revision."""
        return self.mode or "selfSigned"


class NetworkPolicySettings(Part):
    """Network access to the pods."""

    enabled: bool = Field(True, description="Restrict admin and worker ports to ORCA's own pods.")


class DisruptionBudget(Part):
    """Protection against voluntary evictions."""

    enabled: bool = Field(False, description="Create a PodDisruptionBudget if replicas is at least 2.")
    max_unavailable: Annotated[int, Field(ge=1, le=1000)] = Field(
        1, description="Maximum number of unavailable worker pods."
    )


class Monitoring(Part):
    """Scraping by Prometheus."""

    enabled: bool = Field(False, description="Create a PodMonitor if the cluster serves this kind.")
    labels: Labels = Field({}, description="Labels of the PodMonitor, by which Prometheus selects it.")


class Restart(Part):
    """Change `id` to recreate all pods."""

    id: Annotated[str, Field(max_length=64)] = Field("", description="Any text; a new value recreates all pods.")


class Spec(Part):
    """The desired state."""

    model: Annotated[Model, Effect.RESTARTS] = Field(description="The model to serve.")
    parallelism: Annotated[Parallelism, Effect.RESTARTS] = Field(
        Parallelism(), description="Partitioning of a pipeline."
    )
    replicas: Annotated[int, Field(ge=0, le=1000), Effect.LIVE] = Field(
        1,
        description="Number of pipelines, also set through the scale subresource. With 0, requests get 503, "
        "unless `autoscaling.minReplicas` is 0.",
    )
    autoscaling: Annotated[Autoscaling | None, Effect.LIVE] = Field(
        None,
        description="Automatic scaling: an autoscaler sets `replicas`, which manifests should then omit.",
    )
    scheduler: Annotated[Scheduler, Effect.RESTARTS] = Field(Scheduler(), description="Settings of the scheduler.")
    rollout_strategy: Annotated[RolloutStrategy, Effect.LIVE] = Field(
        RolloutStrategy(), description="How a new revision replaces the old."
    )
    progress_deadline_seconds: Annotated[Seconds, Effect.LIVE] = Field(
        1800,
        description="Time without progress after which a deployment that is not ready counts as failed. Progress is an "
        "edit, or a pipeline that becomes ready.",
    )
    startup_timeout_seconds: Annotated[Seconds, Effect.LIVE] = Field(
        1800,
        description="Timeout for image pull, download and loading of a pod; until then, recovery does not replace it.",
    )
    drain_timeout_seconds: Annotated[int, Field(ge=1, le=3600), Effect.SMALLER_IS_LIVE] = Field(
        30, description="Timeout for in-flight requests when pods terminate."
    )
    recovery_policy: RecoveryPolicy = Field(RecoveryPolicy(), description="Timeouts and limits of failure recovery.")
    communication: Annotated[Communication, Effect.RESTARTS] = Field(
        Communication(), description="Communication between workers."
    )
    master: Annotated[MasterSettings, Effect.RESTARTS] = Field(MasterSettings(), description="The engine-master pod.")
    worker: Annotated[WorkerSettings, Effect.RESTARTS] = Field(WorkerSettings(), description="The worker pods.")
    image_pull_policy: Annotated[Literal["Always", "IfNotPresent", "Never"], Effect.RESTARTS] = Field(
        "IfNotPresent", description="Pull policy of all images."
    )
    image_pull_secrets: Annotated[list[PullSecret], Effect.RESTARTS] = Field(
        [], description="Secrets with registry credentials."
    )
    service: Annotated[ServiceSettings, Effect.LIVE] = Field(
        ServiceSettings(), description="The Service that clients use."
    )
    auth: Annotated[Auth, Effect.RESTARTS] = Field(Auth(), description="Authentication of clients.")
    tls: Annotated[Tls, Effect.RESTARTS] = Field(Tls(), description="Mutual TLS between the pods.")
    network_policy: Annotated[NetworkPolicySettings, Effect.LIVE] = Field(
        NetworkPolicySettings(), description="Network access to the pods."
    )
    pod_disruption_budget: Annotated[DisruptionBudget, Effect.LIVE] = Field(
        DisruptionBudget(), description="Protection against evictions."
    )
    monitoring: Annotated[Monitoring, Effect.LIVE] = Field(Monitoring(), description="Scraping by Prometheus.")
    suspend: Annotated[bool, Effect.LIVE] = Field(False, description="Delete the pods and keep all other objects.")
    restart: Annotated[Restart, Effect.RESTARTS] = Field(Restart(), description="Change `id` to recreate all pods.")

    @property
    def num_pipelines(self) -> int:
        """Number of pipelines by the spec alone (see sleep.py), 0 while suspended."""
        return 0 if self.suspend else self.replicas

    @property
    def workers_device(self) -> Device:
        """Device of the workers."""
        return self.worker.device or device_of(self.communication.backend)
