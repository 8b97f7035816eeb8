"""Rules over several fields, each in two forms: CEL for the API server, Python for servers that do not enforce CEL.

`parse` applies the schema and the Python form; crd.py writes the CEL form into the CRD. A test compares both forms on
one table of specs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from orca_operator.api import Spec
from orca_operator.names import LONGEST_NAME

NAME = r"^[a-z]([-a-z0-9]*[a-z0-9])?$"


class InvalidSpecError(Exception):
    """A spec that cannot be carried out; the message begins with the field."""


@dataclass(frozen=True, slots=True)
class Rule:
    """`cel` speaks of the object at `path` below spec ("" is spec itself, None the whole object) as `self`."""

    path: str | None
    cel: str
    field: str
    message: str
    holds: Callable[[str, Spec], bool]


RULES = (
    Rule(
        None,
        f"self.metadata.name.matches('{NAME}')",
        "metadata.name",
        "must be lower-case letters, digits and -, and begin with a letter: it becomes the name of a Service",
        lambda name, spec: re.match(NAME, name) is not None,
    ),
    Rule(
        None,
        f"self.metadata.name.size() <= {LONGEST_NAME}",
        "metadata.name",
        f"must be at most {LONGEST_NAME} characters, so that the names of its pods fit",
        lambda name, spec: len(name) <= LONGEST_NAME,
    ),
    Rule(
        "model",
        "!self.uri.contains('..')",
        "model.uri",
        "must not contain ..",
        lambda name, spec: ".." not in spec.model.uri,
    ),
    Rule(
        "model",
        "!has(self.cache) || self.uri.startsWith('hf://')",
        "model.cache",
        "is for hf:// models: others are not downloaded",
        lambda name, spec: spec.model.cache is None or spec.model.uri.startswith("hf://"),
    ),
    Rule(
        "model",
        "!has(self.revision) || self.uri.startsWith('hf://')",
        "model.revision",
        "is for hf:// models: others have no revisions",
        lambda name, spec: spec.model.revision is None or spec.model.uri.startswith("hf://"),
    ),
    Rule(
        "model",
        "!has(self.secretRef) || self.uri.startsWith('hf://')",
        "model.secretRef",
        "is for hf:// models: others need no token",
        lambda name, spec: spec.model.secret_ref is None or spec.model.uri.startswith("hf://"),
    ),
    Rule(
        "scheduler",
        "self.tokenBudget >= self.maxBatchSize",
        "scheduler.tokenBudget",
        "must be at least scheduler.maxBatchSize: every request of a batch needs a token",
        lambda name, spec: spec.scheduler.token_budget >= spec.scheduler.max_batch_size,
    ),
    Rule(
        "autoscaling",
        "self.minReplicas <= self.maxReplicas",
        "autoscaling.minReplicas",
        "must not exceed autoscaling.maxReplicas",
        lambda name, spec: spec.autoscaling is None or spec.autoscaling.min_replicas <= spec.autoscaling.max_replicas,
    ),
    Rule(
        "rolloutStrategy",
        "self.maxUnavailable + self.maxSurge > 0",
        "rolloutStrategy.maxSurge",
        "and rolloutStrategy.maxUnavailable cannot both be 0: nothing could move",
        lambda name, spec: spec.rollout_strategy.max_unavailable + spec.rollout_strategy.max_surge > 0,
    ),
    Rule(
        "",
        "self.startupTimeoutSeconds <= self.progressDeadlineSeconds",
        "startupTimeoutSeconds",
        "must not exceed progressDeadlineSeconds",
        lambda name, spec: spec.startup_timeout_seconds <= spec.progress_deadline_seconds,
    ),
    Rule(
        "",
        "!has(self.communication.rdmaResource) || self.communication.backend == 'nccl'",
        "communication.rdmaResource",
        "is for the nccl backend",
        lambda name, spec: spec.communication.rdma_resource is None or spec.communication.backend == "nccl",
    ),
    Rule(
        "",
        "self.communication.backend == 'nccl' || self.model.dtype != 'float16'",
        "model.dtype",
        "float16 is for GPUs: use bfloat16 or float32 with the gloo backend",
        lambda name, spec: spec.communication.backend == "nccl" or spec.model.dtype != "float16",
    ),
)


def parse(name: str, spec: Mapping[str, Any]) -> Spec:
    """Returns the spec of the OrcaDeployment `name`; raises InvalidSpecError that names the first wrong field."""
    try:
        parsed = Spec.model_validate(spec)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"]) or "spec"
        raise InvalidSpecError(f"spec.{field}: {first['msg']}, got {first['input']!r}"[:1000]) from error
    for rule in RULES:
        if not rule.holds(name, parsed):
            raise InvalidSpecError(f"{where(rule)} {rule.message}")
    return parsed


def where(rule: Rule) -> str:
    """The field of a rule as users write it."""
    return rule.field if rule.path is None else f"spec.{rule.field}"
