"""The model of a pod: path, volumes and, for hf:// and s3://, the init container that downloads it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from orca_operator.api import Spec
from orca_operator.api_model import OCI_URI
from orca_operator.diagnose import FETCH_CONTAINER

VOLUME = "model"
MOUNT = "/models/volume"
CACHE = "/models/cache"


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A model in a pod; `path` is the directory in the topology."""

    path: str
    volume: dict[str, Any] | None = None
    mount: dict[str, Any] | None = None
    fetched: bool = False


def model_source(spec: Spec) -> ModelSource:
    """Return the source."""
    model = spec.model
    scheme, _, rest = model.uri.partition("://")
    if scheme == "file":
        return ModelSource(path=rest)
    if scheme == "pvc":
        claim, _, path = rest.partition("/")
        return ModelSource(
            path=f"{MOUNT}/{path}",
            volume={"name": VOLUME, "persistentVolumeClaim": {"claimName": claim, "readOnly": True}},
            mount={"name": VOLUME, "mountPath": MOUNT, "readOnly": True},
        )
    if scheme == "oci":
        parts = re.match(OCI_URI, model.uri)
        assert parts is not None, "validation.py"
        image = {"reference": parts["image"] or parts["latest"], "pullPolicy": spec.image_pull_policy}
        return ModelSource(
            path=f"{MOUNT}{parts['path'] or ''}",
            volume={"name": VOLUME, "image": image},
            mount={"name": VOLUME, "mountPath": MOUNT, "readOnly": True},
        )
    cache = model.cache
    volume: dict[str, Any] = {"name": VOLUME, "emptyDir": {}}
    if cache is not None and cache.claim_name:
        volume = {"name": VOLUME, "persistentVolumeClaim": {"claimName": cache.claim_name}}
    elif cache is not None and cache.size_limit:
        volume["emptyDir"] = {"sizeLimit": cache.size_limit}
    folder = f"s3/{rest}" if scheme == "s3" else f"{rest.replace('/', '--')}/{model.revision or 'main'}"
    return ModelSource(
        path=f"{CACHE}/{folder}",
        volume=volume,
        mount={"name": VOLUME, "mountPath": CACHE},
        fetched=True,
    )


def fetch_container(
    spec: Spec,
    image: str,
    options: list[str],
    env: list[dict[str, Any]],
    mounts: list[dict[str, Any]],
    security: dict[str, Any],
    resources: dict[str, Any],
) -> dict[str, Any]:
    """Return the init container; `options` of `orca fetch` select the files that this pod needs.

    `env` and `mounts` are those of the pod's container: a variable such as SSL_CERT_FILE names a file of a mount.
    Mounts within the model's volume are left out: a container runtime makes the folders above them as root. Only
    privileged containers may pass mounts on to the host (`Bidirectional`), and this one makes none.
    """
    model, source = spec.model, model_source(spec)
    environment: list[dict[str, Any]] = []
    revision, entries = list[str](), dict[str, Any]()
    if model.uri.startswith("hf://"):
        revision = ["--revision", model.revision or "main"]
        environment.append({"name": "HF_HOME", "value": "/tmp/huggingface"})
        if model.secret_ref is not None:
            secret = {"name": model.secret_ref.name, "key": model.secret_ref.key}
            environment.append({"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": secret}})
    elif model.secret_ref is not None:
        entries["envFrom"] = [{"secretRef": {"name": model.secret_ref.name}}]
    overridden = {str(entry.get("name")) for entry in env}
    return {
        "name": FETCH_CONTAINER,
        "image": image,
        "imagePullPolicy": spec.image_pull_policy,
        "args": ["fetch", model.uri, *revision, "--into", source.path, *options],
        "env": [entry for entry in environment if entry["name"] not in overridden] + env,
        **entries,
        "volumeMounts": [
            source.mount,
            {"name": "tmp", "mountPath": "/tmp"},
            *(_received(mount) for mount in mounts if not mount["mountPath"].startswith(f"{CACHE}/")),
        ],
        "securityContext": security,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        **({"resources": resources} if resources else {}),
    }


def _received(mount: dict[str, Any]) -> dict[str, Any]:
    """Return a mount that gets mounts from the host and passes none on to it."""
    passes_on = mount.get("mountPropagation") == "Bidirectional"
    return mount | {"mountPropagation": "HostToContainer"} if passes_on else mount
