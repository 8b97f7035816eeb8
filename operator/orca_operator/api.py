"""The spec of an OrcaDeployment (docs/api.md is generated from here; `api_status.py` has the status).

`schema.py` makes structural schemas from these models, `crd.py` the CustomResourceDefinition from those;
`validation.py` holds the rules over several fields. What is changed on pods is in `pod_settings.py`.
Every field of the spec has an `Effect` in its annotation, or takes that of the object that contains it: whether a
change recreates the pods, is live, waits for a later start, or is not acted on yet.
"""

from __future__ import annotations

from typing import Annotated, Literal

from orca_contract import rank_environment
from orca_contract.kv_blocks import BLOCK_SIZE
from orca_contract.topology import Backend, Dtype
from pydantic import Field

from orca_operator.api_types import Annotations, Labels, Part, Quantity, Text
from orca_operator.effects import Effect
from orca_operator.pod_settings import MasterSettings, WorkerSettings

URI = r"^(hf://[A-Za-z0-9._-]+/[A-Za-z0-9._-]+|pvc://[a-z0-9][a-z0-9.-]*/[^ ]+|s3://[^ ]+|oci://[^ ]+|file:///[^ ]+)$"
DNS_NAME = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"
Seconds = Annotated[int, Field(ge=1, le=86400)]


class SecretKey(Part):
    """One key of a Secret of the same namespace."""

    name: Text = Field(description="Name of the Secret.")
    key: Text = Field("token", description="Key in it.")


class Cache(Part):
    """Where a downloaded model is kept."""

    claim_name: Text | None = Field(
        None,
        description="PersistentVolumeClaim that all pods share (ReadWriteMany on several nodes). Without one every pod "
        "downloads its own part into an emptyDir.",
    )
    size_limit: Quantity | None = Field(None, description="Bound of the emptyDir.")


class Model(Part):
    """The model that is served."""

    uri: Annotated[str, Field(pattern=URI, max_length=1024)] = Field(
        description="Where the model is: hf://ORGANISATION/NAME, pvc://CLAIM/PATH, or file:///PATH for one inside the "
        "images. s3:// and oci:// are reserved."
    )
    name: Text | None = Field(None, description="Name in the API; the OrcaDeployment's name by default.")
    revision: Text | None = Field(None, description="Branch, tag or commit of an hf:// model; main by default.")
    dtype: Dtype = Field("auto", description="Of weights and activations; auto is the checkpoint's.")
    max_model_len: Annotated[int, Field(ge=1, le=10_000_000)] | None = Field(
        None, description="Longest sequence in tokens; the model's own by default."
    )
    secret_ref: SecretKey | None = Field(None, description="Token for the hub.")
    cache: Cache | None = Field(None, description="Where an hf:// model is kept.")


class Parallelism(Part):
    """How one pipeline is cut; pods = pipelineParallelSize per pipeline, GPUs = tensorParallelSize per pod."""

    pipeline_parallel_size: Annotated[int, Field(ge=1, le=64)] = Field(
        1, description="Inter-layer partitions: StatefulSets, and pods of one pipeline."
    )
    tensor_parallel_size: Annotated[int, Field(ge=1, le=16)] = Field(
        1, description="Intra-layer partitions: GPUs of one worker pod."
    )


class Autoscaling(Part):
    """Bounds and targets of automatic scaling."""

    min_replicas: Annotated[int, Field(ge=0, le=1000)] = Field(1, description="Fewest pipelines.")
    max_replicas: Annotated[int, Field(ge=1, le=1000)] = Field(1, description="Most pipelines.")
    backend: Literal["hpa", "keda"] = Field("hpa", description="Who scales.")
    target_queue_depth: Annotated[int, Field(ge=1)] = Field(8, description="Waiting requests per pipeline.")
    target_kv_cache_usage_percent: Annotated[int, Field(ge=1, le=100)] = Field(
        80, alias="targetKVCacheUsagePercent", description="Share of the K/V slots that is held."
    )
    scale_down_delay_seconds: Annotated[int, Field(ge=0, le=86400)] = Field(
        300, description="How long the load must stay low before a pipeline goes."
    )


class Scheduler(Part):
    """Knobs of Algorithm 1."""

    max_batch_size: Annotated[int, Field(ge=1, le=4096), Effect.LIVE] = Field(32, description="Requests per iteration.")
    max_queue_depth: Annotated[int, Field(ge=1, le=1_000_000), Effect.LIVE] = Field(
        4096, description="Requests that may wait; more are answered with 429."
    )
    token_budget: Annotated[int, Field(ge=1, le=1_000_000), Effect.LIVE] = Field(
        2048, description="Input tokens per iteration; longer prompts run in chunks."
    )
    admission: Literal["reserve", "paged"] = Field(
        "reserve", description="K/V slots for all tokens of a request at once, as in the paper, or on demand with "
        "preemption."
    )  # fmt: skip
    kv_slots: Annotated[int, Field(ge=BLOCK_SIZE)] | None = Field(
        None, description="K/V slots per pipeline, one per token; what fits by default."
    )


class RolloutStrategy(Part):
    """How a new revision replaces the old one, counted in pipelines."""

    type: Literal["RollingUpdate", "Recreate"] = Field("Recreate", description="Recreate ends the old revision first.")
    max_unavailable: Annotated[int, Field(ge=0, le=1000)] = Field(1, description="Pipelines that may be missing.")
    max_surge: Annotated[int, Field(ge=0, le=1000)] = Field(0, description="Pipelines that may be there in addition.")


class RecoveryPolicy(Part):
    """Bounds on failure and repair."""

    stall_timeout_seconds: Annotated[Seconds, Effect.NEXT_START] = Field(
        300, description="Longest time of one iteration, start-up included."
    )
    recovery_timeout_seconds: Annotated[Seconds, Effect.NEXT_START] = Field(
        600, description="How long requests that were accepted wait for a lost pipeline to serve again."
    )
    node_failure_grace_seconds: Annotated[Seconds, Effect.NOT_YET] = Field(
        60, description="After which pods of a dead node are replaced."
    )
    max_restarts: Annotated[int, Field(ge=0, le=1000), Effect.NOT_YET] = Field(
        10, description="Pipeline restarts per window."
    )
    restart_window_seconds: Annotated[Seconds, Effect.NOT_YET] = Field(3600, description="The window.")


class Communication(Part):
    """How workers reach each other."""

    backend: Backend = Field("nccl", description="nccl for GPUs; gloo is the CPU path.")
    socket_interface: Text | None = Field(None, description="Network interface, the pod's first one by default.")
    rdma_resource: Text | None = Field(
        None, description="Extended resource of RDMA devices, one per worker pod, such as rdma/hca."
    )
    env: dict[str, Annotated[str, Field(max_length=rank_environment.MAX_VALUE_LENGTH)]] = Field(
        {},
        description="Settings of NCCL, gloo and OpenMP in the rank processes, such as NCCL_DEBUG. Other variables, and "
        "those that name a file, a library or an address to listen on, are refused.",
    )


class PullSecret(Part):
    """A Secret with registry credentials."""

    name: Text = Field(description="Name of the Secret.")


class ServiceSettings(Part):
    """The Service that clients use."""

    type: Literal["ClusterIP", "NodePort", "LoadBalancer"] = Field("ClusterIP", description="See the Service API.")
    annotations: Annotations = Field({}, description="Additional annotations.")
    labels: Labels = Field({}, description="Additional labels.")


class Auth(Part):
    """Who may use the API."""

    api_key_secret_ref: SecretKey | None = Field(
        None,
        description="Keys that clients send as bearer tokens, or `sha256:` and a digest, one per line. "
        "The master follows changes of the Secret.",
    )


class IssuerReference(Part):
    """An issuer of cert-manager."""

    name: Text = Field(description="Its name.")
    kind: Text = Field("Issuer", description="Issuer, ClusterIssuer, or the kind of an external issuer.")
    group: Text = Field("cert-manager.io", description="The API group of that kind.")


class Tls(Part):
    """Mutual TLS between the pods."""

    mode: Literal["selfSigned", "secret", "certManager", "off"] | None = Field(
        None,
        description="Where certificates come from: the operator makes them (selfSigned), one Secret (secret), or "
        'cert-manager (certManager); off is plaintext, in YAML only with quotes: "off". Unset is selfSigned for '
        "revisions that begin with this version; a running revision stays as it is.",
    )
    secret_name: Annotated[str, Field(pattern=DNS_NAME, max_length=253)] | None = Field(
        None,
        description="For mode secret: tls.crt, tls.key and ca.crt of all pods. The certificate has the DNS names "
        "{master,worker,operator}.NAME.NAMESPACE.orca-serving.io.",
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
    """Who may reach which port."""

    enabled: bool = Field(True, description="Restrict admin and worker ports to those who need them.")


class DisruptionBudget(Part):
    """Protection against voluntary evictions."""

    enabled: bool = Field(False, description="Make a PodDisruptionBudget, unless there is only one pipeline.")
    max_unavailable: Annotated[int, Field(ge=1, le=1000)] = Field(1, description="Worker pods that may be evicted.")


class Monitoring(Part):
    """Scraping by Prometheus."""

    enabled: bool = Field(False, description="Make a PodMonitor where the cluster serves that kind.")
    labels: Labels = Field({}, description="Labels by which a Prometheus selects it.")


class Restart(Part):
    """Change `id` to recreate all pods."""

    id: Annotated[str, Field(max_length=64)] = Field("", description="Any text: another one recreates all pods.")


class Spec(Part):
    """What is wanted."""

    model: Annotated[Model, Effect.RESTARTS] = Field(description="The model that is served.")
    parallelism: Annotated[Parallelism, Effect.RESTARTS] = Field(Parallelism(), description="How one pipeline is cut.")
    replicas: Annotated[int, Field(ge=0, le=1000), Effect.LIVE] = Field(
        1, description="Pipelines. Also set through the scale subresource."
    )
    autoscaling: Annotated[Autoscaling | None, Effect.NOT_YET] = Field(None, description="Automatic scaling.")
    scheduler: Annotated[Scheduler, Effect.RESTARTS] = Field(Scheduler(), description="Knobs of the scheduler.")
    rollout_strategy: Annotated[RolloutStrategy, Effect.NOT_YET] = Field(
        RolloutStrategy(), description="How a new revision replaces the old."
    )
    progress_deadline_seconds: Annotated[Seconds, Effect.LIVE] = Field(
        1800, description="After which a deployment that is not ready is stuck."
    )
    startup_timeout_seconds: Annotated[Seconds, Effect.NOT_YET] = Field(
        1800, description="For pulling, downloading and loading of one pod."
    )
    drain_timeout_seconds: Annotated[int, Field(ge=1, le=3600), Effect.NEXT_REVISION] = Field(
        30, description="For requests under way when pods end."
    )
    recovery_policy: RecoveryPolicy = Field(RecoveryPolicy(), description="Bounds on failure and repair.")
    communication: Annotated[Communication, Effect.RESTARTS] = Field(
        Communication(), description="How workers reach each other."
    )
    master: Annotated[MasterSettings, Effect.RESTARTS] = Field(MasterSettings(), description="The engine-master pod.")
    worker: Annotated[WorkerSettings, Effect.RESTARTS] = Field(WorkerSettings(), description="The worker pods.")
    image_pull_policy: Annotated[Literal["Always", "IfNotPresent", "Never"], Effect.RESTARTS] = Field(
        "IfNotPresent", description="See the pod API."
    )
    image_pull_secrets: Annotated[list[PullSecret], Effect.RESTARTS] = Field([], description="See the pod API.")
    service: Annotated[ServiceSettings, Effect.LIVE] = Field(
        ServiceSettings(), description="The Service that clients use."
    )
    auth: Annotated[Auth, Effect.RESTARTS] = Field(Auth(), description="Who may use the API.")
    tls: Annotated[Tls, Effect.RESTARTS] = Field(Tls(), description="Mutual TLS between the pods.")
    network_policy: Annotated[NetworkPolicySettings, Effect.LIVE] = Field(
        NetworkPolicySettings(), description="Who may reach which port."
    )
    pod_disruption_budget: Annotated[DisruptionBudget, Effect.LIVE] = Field(
        DisruptionBudget(), description="Protection against evictions."
    )
    monitoring: Annotated[Monitoring, Effect.LIVE] = Field(Monitoring(), description="Scraping by Prometheus.")
    suspend: Annotated[bool, Effect.LIVE] = Field(False, description="No pods, everything else stays.")
    restart: Annotated[Restart, Effect.RESTARTS] = Field(Restart(), description="Change `id` to recreate all pods.")

    @property
    def num_pipelines(self) -> int:
        """Pipelines that are wanted now: none while suspended."""
        return 0 if self.suspend else self.replicas
