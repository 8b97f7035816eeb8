"""The model of a pod: path, volumes and, for hub models, the init container that downloads them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from orca_operator.api import OCI_URI, Model, Spec
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
    """Return the source; its path is empty for a URI scheme that this version does not support."""
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
    if scheme == "oci" and (parts := re.match(OCI_URI, model.uri)) is not None:
        image = {"reference": parts["image"] or parts["latest"], "pullPolicy": spec.image_pull_policy}
        return ModelSource(
            path=f"{MOUNT}{parts['path'] or ''}",
            volume={"name": VOLUME, "image": image},
            mount={"name": VOLUME, "mountPath": MOUNT, "readOnly": True},
        )
    if scheme == "hf":
        cache = model.cache
        volume: dict[str, Any] = {"name": VOLUME, "emptyDir": {}}
        if cache is not None and cache.claim_name:
            volume = {"name": VOLUME, "persistentVolumeClaim": {"claimName": cache.claim_name}}
        elif cache is not None and cache.size_limit:
            volume["emptyDir"] = {"sizeLimit": cache.size_limit}
        return ModelSource(
            path=f"{CACHE}/{rest.replace('/', '--')}/{model.revision or 'main'}",
            volume=volume,
            mount={"name": VOLUME, "mountPath": CACHE},
            fetched=True,
        )
    return ModelSource(path="")


def is_supported(model: Model) -> bool:
    """Whether this version supports the scheme of the model's URI."""
    return not model.uri.startswith("s3://")


def not_supported(model: Model) -> str:
    """Return the error message for a URI scheme that is not supported yet."""
    scheme = model.uri.partition("://")[0]
    return f"spec.model.uri: {scheme}:// is not supported yet; hf://, oci://, pvc:// and file:// are"


def fetch_container(
    spec: Spec, image: str, options: list[str], env: list[dict[str, Any]], security: dict[str, Any]
) -> dict[str, Any]:
    """Return the init container; `options` of `orca fetch` select the files that this pod needs."""
    model, source = spec.model, model_source(spec)
    environment: list[dict[str, Any]] = [{"name": "HF_HOME", "value": "/tmp/huggingface"}]
    if model.secret_ref is not None:
        secret = {"name": model.secret_ref.name, "key": model.secret_ref.key}
        environment.append({"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": secret}})
    overridden = {str(entry.get("name")) for entry in env}
    return {
        "name": FETCH_CONTAINER,
        "image": image,
        "imagePullPolicy": spec.image_pull_policy,
        "args": ["fetch", model.uri, "--revision", model.revision or "main", "--into", source.path, *options],
        "env": [entry for entry in environment if entry["name"] not in overridden] + env,
        "volumeMounts": [source.mount, {"name": "tmp", "mountPath": "/tmp"}],
        "securityContext": security,
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }
