"""Changes of an OrcaDeployment's spec, one field at a time."""

from __future__ import annotations

import functools
from typing import Any

from orca_operator.api import Autoscaling, IssuerReference, PullSecret, Spec
from orca_operator.api_model import Adapter, Cache
from orca_operator.api_types import SecretKey
from orca_operator.effects import Leaf
from orca_operator.pod_settings import Journal, Placement, PodTemplate
from pydantic import BaseModel

OTHER_VALUES: dict[str, Any] = {
    "auth.api_key_secret_ref": SecretKey(name="other"),
    "autoscaling": Autoscaling(),
    "image_pull_secrets": [PullSecret(name="other")],
    "master.extra_args": ["--other"],
    "master.journal": Journal(),
    "master.pod_template": PodTemplate(spec={"hostNetwork": True}),
    "model.adapters": [Adapter(name="other", path="other")],
    "model.draft_path": "/other",
    "model.cache": Cache(size_limit="1Gi"),
    "model.max_model_len": 99,
    "model.secret_ref": SecretKey(name="other"),
    "scheduler.kv_slots": 99,
    "scheduler.prefix_caching": False,
    "scheduler.speculative_tokens": 4,
    "scheduler.target_itl_milliseconds": 100,
    "tls.enabled": True,
    "tls.issuer_ref": IssuerReference(name="other"),
    "worker.extra_args": ["--other"],
    "worker.placement": Placement(policy="spread"),
    "worker.pod_template": PodTemplate(spec={"hostNetwork": True}),
}
"""Values for leaves whose current value does not reveal their type."""


def changed(spec: Spec, leaf: Leaf) -> Spec:
    """Return the spec with another value of one field, which need not be valid."""
    name, value = ".".join(leaf.path), functools.reduce(getattr, leaf.path, spec)
    return _replaced(spec, leaf.path, OTHER_VALUES[name] if name in OTHER_VALUES else _another(value))


def _another(value: Any) -> Any:
    match value:
        case bool():
            return not value
        case int():
            return value + 1
        case dict():
            return {"other": "1"}
        case list():
            return [{"name": "other"}]
        case _:
            return f"{value or ''}-other"


def _replaced(part: Any, path: tuple[str, ...], value: Any) -> Any:
    name, *rest = path
    assert isinstance(part, BaseModel)
    return part.model_copy(update={name: _replaced(getattr(part, name), tuple(rest), value) if rest else value})
