"""The closed list of reasons why an OrcaDeployment, or a pipeline of its master, is not ready."""

from __future__ import annotations

import enum
from collections.abc import Mapping


class Reason(enum.StrEnum):
    """`Ready.reason` of an OrcaDeployment, and the reason of a pipeline's failure."""

    SERVING = "Serving"
    SUSPENDED = "Suspended"
    INVALID_SPEC = "InvalidSpec"
    CERTIFICATE_NOT_READY = "CertificateNotReady"
    IMAGE_PULL_FAILED = "ImagePullFailed"
    MODEL_DOWNLOAD_FAILED = "ModelDownloadFailed"
    INSUFFICIENT_GPU = "InsufficientGPU"
    POD_UNSCHEDULABLE = "PodUnschedulable"
    NODE_LOST = "NodeLost"
    WORKER_OOM_KILLED = "WorkerOOMKilled"
    WORKER_CRASH_LOOP = "WorkerCrashLoop"
    MASTER_CRASH_LOOP = "MasterCrashLoop"
    RESTART_BUDGET_EXCEEDED = "RestartBudgetExceeded"
    PROGRESS_DEADLINE_EXCEEDED = "ProgressDeadlineExceeded"
    ENGINE_STALLED = "EngineStalled"
    COMMUNICATOR_ERROR = "CommunicatorError"
    RENDEZVOUS_TIMEOUT = "RendezvousTimeout"
    MODEL_DOWNLOADING = "ModelDownloading"
    ROLLING_UPDATE = "RollingUpdate"
    RECOVERING = "Recovering"
    LOADING_WEIGHTS = "LoadingWeights"


DESCRIPTIONS: Mapping[Reason, str] = {
    Reason.SERVING: "Every pipeline that is wanted serves.",
    Reason.SUSPENDED: "`spec.suspend` is set: there are no pods.",
    Reason.INVALID_SPEC: "The spec cannot be carried out; what ran before goes on. The message names the field.",
    Reason.CERTIFICATE_NOT_READY: "A new revision has no usable certificate yet; what ran before goes on. The message "
    "names the Secret and what is wrong with it.",
    Reason.IMAGE_PULL_FAILED: "A pod's image cannot be had.",
    Reason.MODEL_DOWNLOAD_FAILED: "The model cannot be downloaded.",
    Reason.INSUFFICIENT_GPU: "No node has the GPUs that a worker asks for.",
    Reason.POD_UNSCHEDULABLE: "No node takes a pod, for another reason than GPUs.",
    Reason.NODE_LOST: "A pod's node does not answer.",
    Reason.WORKER_OOM_KILLED: "A worker used more memory than its limit.",
    Reason.WORKER_CRASH_LOOP: "A worker ends again and again.",
    Reason.MASTER_CRASH_LOOP: "The engine master ends again and again.",
    Reason.RESTART_BUDGET_EXCEEDED: "Reserved for `recoveryPolicy.maxRestarts`.",
    Reason.PROGRESS_DEADLINE_EXCEEDED: "Not ready within `progressDeadlineSeconds`, and no better reason is known.",
    Reason.ENGINE_STALLED: "An iteration did not return within `recoveryPolicy.stallTimeoutSeconds`.",
    Reason.COMMUNICATOR_ERROR: "Workers lost each other.",
    Reason.RENDEZVOUS_TIMEOUT: "The master does not reach a worker that runs, or workers do not find each other.",
    Reason.MODEL_DOWNLOADING: "Pods download the model.",
    Reason.ROLLING_UPDATE: "A new revision replaces the old one.",
    Reason.RECOVERING: "A lost pipeline is being formed again.",
    Reason.LOADING_WEIGHTS: "Pods start, and workers load their weights.",
}
