"""Every label, port and object name of one OrcaDeployment (docs/contracts.md, sections 6 and 7). Pure."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

GROUP = "orca-serving.io"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
KIND = "OrcaDeployment"
PLURAL = "orcadeployments"
FIELD_MANAGER = "orca-operator"

NAME_LABEL = "app.kubernetes.io/name"
INSTANCE_LABEL = "app.kubernetes.io/instance"
COMPONENT_LABEL = "app.kubernetes.io/component"
MANAGED_BY_LABEL = "app.kubernetes.io/managed-by"
PART_OF_LABEL = "app.kubernetes.io/part-of"
VERSION_LABEL = "app.kubernetes.io/version"
RELEASE = version("orca-serving").replace("+", "_")
"""Value of VERSION_LABEL: the version of the operator that rendered the pod. A label has no `+`, of local versions."""
DEPLOYMENT_LABEL = f"{GROUP}/deployment"
ROLE_LABEL = f"{GROUP}/component"
PARTITION_LABEL = f"{GROUP}/partition"
REVISION_LABEL = f"{GROUP}/revision"

ENGINE_TYPE = {"llm-d.ai/engine-type": "vllm", "inference.networking.k8s.io/engine-type": "vllm"}
"""Labels by which endpoint pickers choose the metrics to read: masters export vLLM's. The first key is llm-d's.
The second, of the Gateway API Inference Extension, is read by llm-d if the first is absent
(https://github.com/llm-d/llm-d-router/tree/main/pkg/epp/framework/plugins/datalayer/extractor/metrics)."""

MASTER = "master"
WORKER = "worker"
OPERATOR = "operator"
OPERATOR_APP = "orca-operator"
"""`app.kubernetes.io/name` of the operator's own pods (charts/orca)."""

API_PORT = 8000
PROBE_PORT = 8081
ADMIN_PORT = 8082
WORKER_PORT = 50051

LONGEST_NAME = 36
"""Bound that keeps every child's name, and labels derived from it, within 63 characters."""

CERTIFICATE_VOLUME = "orca-tls"
"""The volume with a pod's certificate; a pod without this volume uses plaintext."""
ROTATE_ANNOTATION = f"{GROUP}/rotate-certificates"
"""Annotation of an OrcaDeployment; a new value requests a new certificate authority (`tls.mode: selfSigned`)."""
BOOT_ANNOTATION = f"{GROUP}/boot"
"""Annotation of a ControllerRevision: the parts of the master's start-up files that the revision keeps (boot.Kept)."""


def master(name: str, revision: str) -> str:
    """Return the name of the Deployment of a revision's engine master."""
    return f"{name}-{revision}-master"


def partition(name: str, revision: str, index: int) -> str:
    """Return the name of the StatefulSet of a revision's inter-layer partition."""
    return f"{name}-{revision}-p{index}"


def boot(name: str, revision: str) -> str:
    """Return the name of the ConfigMap with the start-up files of a revision's master."""
    return f"{name}-{revision}-boot"


def revision(name: str, revision_hash: str) -> str:
    """Return the name of the ControllerRevision with a revision's rendering."""
    return f"{name}-{revision_hash}"


def control(name: str) -> str:
    """Return the name of the headless Service that gives every pod a DNS name."""
    return f"{name}-control"


def rivals(name: str) -> dict[str, str]:
    """Return the OrcaDeployments with which this one would share a Service, and the Service's name."""
    found, stem = {control(name): control(name)}, name.removesuffix("-control")
    return found | ({stem: name} if stem != name else {})


def admin(name: str) -> str:
    """Return the name of the Secret with the admin port's token."""
    return f"{name}-admin"


def dns_name(role: str, name: str, namespace: str) -> str:
    """Return the DNS name of a role in certificates; no server resolves it. At most 125 of 253 characters."""
    return f"{role}.{name}.{namespace}.{GROUP}"


def own_secret(name: str, part: str) -> str:
    """Return the name of a Secret of `tls.mode: selfSigned`: the authority's (`ca`) or a role's."""
    return f"{name}-tls-{part}"


def issued(name: str, role: str) -> str:
    """Return the name of a role's Certificate for `tls.mode: certManager`, and of its Secret.

    The name differs from `selfSigned`'s, so that a change of the mode does not overwrite the Secret of running pods.
    """
    return f"{name}-issued-{role}"


def pipeline_id(revision_hash: str, index: int) -> str:
    """Return the key of a pipeline in topology and status."""
    return f"{revision_hash}-{index}"


def worker_address(name: str, namespace: str, revision_hash: str, partition_index: int, pipeline: int) -> str:
    """Return the address of one pod's controller: the pod's DNS name behind the headless Service."""
    pod = f"{partition(name, revision_hash, partition_index)}-{pipeline}"
    return f"{pod}.{control(name)}.{namespace}.svc:{WORKER_PORT}"


def labels(name: str, role: str | None = None) -> dict[str, str]:
    """Return the labels of an object of a deployment, with its role if it has one."""
    values = {
        NAME_LABEL: "orca",
        INSTANCE_LABEL: name,
        MANAGED_BY_LABEL: FIELD_MANAGER,
        PART_OF_LABEL: "orca",
        DEPLOYMENT_LABEL: name,
    }
    if role is not None:
        values |= {COMPONENT_LABEL: role, ROLE_LABEL: role}
    return values


def selector(name: str, role: str) -> dict[str, str]:
    """Return the selector of Services and policies, which includes the revisions."""
    return {DEPLOYMENT_LABEL: name, ROLE_LABEL: role}


def master_labels(name: str, revision_hash: str) -> dict[str, str]:
    """Return the labels of a revision's master and its pod."""
    return labels(name, MASTER) | {REVISION_LABEL: revision_hash}


def worker_labels(name: str, revision_hash: str, partition_index: int) -> dict[str, str]:
    """Return the labels of a partition's StatefulSet and its pods."""
    return labels(name, WORKER) | {PARTITION_LABEL: str(partition_index), REVISION_LABEL: revision_hash}


def master_selector(name: str, revision_hash: str) -> dict[str, str]:
    """Return the immutable selector of a master's Deployment: one revision."""
    return {**selector(name, MASTER), REVISION_LABEL: revision_hash}


def worker_selector(name: str, revision_hash: str, partition_index: int) -> dict[str, str]:
    """Return the immutable selector of a partition's StatefulSet; without the revision, two selectors would overlap."""
    return {**selector(name, WORKER), PARTITION_LABEL: str(partition_index), REVISION_LABEL: revision_hash}


def scale_selector(name: str) -> str:
    """Return `status.selector` of the scale subresource: partition 0's pods, one per pipeline."""
    selected = {**selector(name, WORKER), PARTITION_LABEL: "0"}
    return ",".join(f"{key}={value}" for key, value in sorted(selected.items()))


def deployment_of(meta: Mapping[str, Any]) -> str | None:
    """Return the OrcaDeployment that an object's labels name."""
    deployment: str | None = (meta.get("labels") or {}).get(DEPLOYMENT_LABEL)
    return deployment
