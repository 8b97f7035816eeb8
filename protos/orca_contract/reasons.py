"""The closed list of reasons why an OrcaDeployment, or a pipeline of its master, is not ready."""

from __future__ import annotations

import enum
from collections.abc import Mapping


class Reason(enum.StrEnum):
    """`Ready.reason` of an OrcaDeployment, and the reason of a pipeline's failure."""

    SERVING = "Serving"
    SUSPENDED = "Suspended"
    SCALED_TO_ZERO = "ScaledToZero"
    INVALID_SPEC = "InvalidSpec"
    OPERATOR_FORBIDDEN = "OperatorForbidden"
    CERTIFICATE_NOT_READY = "CertificateNotReady"
    IMAGE_PULL_FAILED = "ImagePullFailed"
    MODEL_DOWNLOAD_FAILED = "ModelDownloadFailed"
    DIFFERENT_WEIGHTS = "DifferentWeights"
    INSUFFICIENT_GPU = "InsufficientGPU"
    POD_UNSCHEDULABLE = "PodUnschedulable"
    QUOTA_EXCEEDED = "QuotaExceeded"
    POD_CREATION_FAILED = "PodCreationFailed"
    VOLUME_MOUNT_FAILED = "VolumeMountFailed"
    NODE_LOST = "NodeLost"
    WORKER_OOM_KILLED = "WorkerOOMKilled"
    WORKER_CRASH_LOOP = "WorkerCrashLoop"
    MASTER_CRASH_LOOP = "MasterCrashLoop"
    RESTART_BUDGET_EXCEEDED = "RestartBudgetExceeded"
    PROGRESS_DEADLINE_EXCEEDED = "ProgressDeadlineExceeded"
    ENGINE_STALLED = "EngineStalled"
    COMMUNICATOR_ERROR = "CommunicatorError"
    RENDEZVOUS_TIMEOUT = "RendezvousTimeout"
    ADMIN_UNAUTHORIZED = "AdminUnauthorized"
    MASTER_UNREACHABLE = "MasterUnreachable"
    MODEL_DOWNLOADING = "ModelDownloading"
    ROLLING_UPDATE = "RollingUpdate"
    RECOVERING = "Recovering"
    LOADING_WEIGHTS = "LoadingWeights"


DESCRIPTIONS: Mapping[Reason, str] = {
    Reason.SERVING: "Every desired pipeline serves.",
    Reason.SUSPENDED: "`spec.suspend` is set: there are no pods. Or `spec.replicas` is 0: the only pod is the master, "
    "which refuses requests with 503.",
    Reason.SCALED_TO_ZERO: "With `autoscaling.minReplicas: 0`: no request has come for `scaleDownDelaySeconds`, and no "
    "pipeline runs. The master keeps the next requests in its queue until a pipeline serves.",
    Reason.INVALID_SPEC: "The spec cannot be applied; the running revision stays. The message names the field.",
    Reason.OPERATOR_FORBIDDEN: "The operator lacks a right on an object that the spec needs; the running revision "
    "stays. The message names the object and the right.",
    Reason.CERTIFICATE_NOT_READY: "A new revision has no usable certificate yet; the running revision stays. The "
    "message names the Secret and the problem.",
    Reason.IMAGE_PULL_FAILED: "A pod's image cannot be pulled.",
    Reason.MODEL_DOWNLOAD_FAILED: "The model cannot be downloaded.",
    Reason.DIFFERENT_WEIGHTS: "Workers have weights of different revisions of the model. Together they would compute "
    "wrong tokens.",
    Reason.INSUFFICIENT_GPU: "No node has the GPUs that a worker requests.",
    Reason.POD_UNSCHEDULABLE: "A pod cannot be scheduled, for another reason than GPUs.",
    Reason.QUOTA_EXCEEDED: "A pod or another object does not fit into a ResourceQuota of the namespace.",
    Reason.POD_CREATION_FAILED: "The API server rejects a pod: its admission, or an object that the pod names.",
    Reason.VOLUME_MOUNT_FAILED: "A volume of a pod cannot be mounted, for example because its Secret does not exist.",
    Reason.NODE_LOST: "A pod's node is unreachable.",
    Reason.WORKER_OOM_KILLED: "A worker exceeded its memory limit.",
    Reason.WORKER_CRASH_LOOP: "A worker crashes repeatedly.",
    Reason.MASTER_CRASH_LOOP: "The engine master crashes repeatedly.",
    Reason.RESTART_BUDGET_EXCEEDED: "A pipeline has exceeded `recoveryPolicy.maxRestarts` and does not serve.",
    Reason.PROGRESS_DEADLINE_EXCEEDED: "Not ready within `progressDeadlineSeconds`, without a more specific reason.",
    Reason.ENGINE_STALLED: "An iteration did not return in time (`recoveryPolicy.stallTimeoutSeconds`).",
    Reason.COMMUNICATOR_ERROR: "Communication between workers failed.",
    Reason.RENDEZVOUS_TIMEOUT: "The master cannot reach a running worker, or workers cannot reach each other.",
    Reason.ADMIN_UNAUTHORIZED: "The master rejects the operator's token, because the admin Secret was replaced; the "
    "master reads the new one as soon as it reaches the pod. Requests are served as before.",
    Reason.MASTER_UNREACHABLE: "The master's pod is ready, but the operator has had no report from it for half a "
    "minute, for example because of a NetworkPolicy.",
    Reason.MODEL_DOWNLOADING: "Pods download the model.",
    Reason.ROLLING_UPDATE: "A new revision replaces the old one.",
    Reason.RECOVERING: "A lost pipeline is being formed again.",
    Reason.LOADING_WEIGHTS: "Pods start, and workers load their weights.",
}
