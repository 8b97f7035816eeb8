"""`parse`: the operator's own check of a spec, the same as the API server's, for servers that do not enforce CEL.

Types, bounds, patterns and the keys of lists come from the CRD's own schema (schema.py, structural.py). Rules that a
schema cannot express are here, each in two forms: crd.py writes the CEL form into the CRD, `parse` applies the Python
form. The tests apply the API server's code and `parse` to the same table of specs. Only the operator checks what a
`podTemplate` overrides (pod_overlay.py).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from orca_contract import rank_environment
from orca_contract.reasons import Reason
from pydantic import ValidationError
from pydantic.alias_generators import to_snake

from orca_operator.api import Spec
from orca_operator.device_rules import DEVICE_RULES
from orca_operator.model_rules import MODEL_RULES
from orca_operator.names import LONGEST_NAME, MASTER, issued, own_secret
from orca_operator.own_options import MASTER_OPTIONS, WORKER_OPTIONS, cel, is_free_of, sentence
from orca_operator.pod_overlay import refusals
from orca_operator.rule import Rule
from orca_operator.schema import spec_schema
from orca_operator.structural import admitted, problems

NAME = r"^[a-z]([-a-z0-9]*[a-z0-9])?$"
DOMAIN = "[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*"
KEY_NAME = "[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
LABEL_KEY = f"^({DOMAIN}/)?{KEY_NAME}$"
ANNOTATION_KEY = f"^({DOMAIN.replace('a-z', 'A-Za-z')}/)?{KEY_NAME}$"
RESOURCE_NAME = f"^(cpu|memory|ephemeral-storage|hugepages-{KEY_NAME}|{DOMAIN}/{KEY_NAME})$"
LONGEST_DOMAIN = 253


class RejectedError(Exception):
    """A spec that is not carried out, or not yet. `reason` is that of `Ready`."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class InvalidSpecError(RejectedError):
    """A spec that cannot be carried out; the message begins with the field."""

    def __init__(self, message: str) -> None:
        super().__init__(Reason.INVALID_SPEC, message)


def _keys(path: str, pattern: str, words: str) -> Rule:
    """Return the rule that every key of a map matches a pattern, which a schema cannot express."""

    def holds(name: str, spec: Spec) -> bool:
        value: Any = spec
        for part in path.split("."):
            value = getattr(value, to_snake(part))
        return all(re.search(rf"{pattern[:-1]}\Z", key) and key.find("/") <= LONGEST_DOMAIN for key in value)

    cel = f"self.all(key, key.matches('{pattern}') && key.indexOf('/') <= {LONGEST_DOMAIN})"
    return Rule(path, cel, path, words, holds)


def _map_rules() -> tuple[Rule, ...]:
    label = "must have keys of the form [DOMAIN/]NAME, with up to 63 letters, digits, -, _ and . in NAME"
    resource = "must name cpu, memory, ephemeral-storage, hugepages-SIZE or an extended resource DOMAIN/NAME"
    pods = ("master", "worker")
    labels = [f"{pod}.{field}" for pod in pods for field in ("labels", "nodeSelector")]
    annotations = [f"{pod}.annotations" for pod in pods]
    resources = [f"{pod}.resources.{field}" for pod in pods for field in ("requests", "limits")]
    return (
        *(_keys(path, LABEL_KEY, label) for path in [*labels, "service.labels", "monitoring.labels"]),
        *(_keys(path, ANNOTATION_KEY, label) for path in [*annotations, "service.annotations"]),
        *(_keys(path, RESOURCE_NAME, resource) for path in resources),
    )


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
    *MODEL_RULES,
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
        "autoscaling",
        "!has(self.keda) || self.backend == 'keda'",
        "autoscaling.keda",
        "is for autoscaling.backend keda",
        lambda name, spec: (
            spec.autoscaling is None or spec.autoscaling.keda is None or spec.autoscaling.backend == "keda"
        ),
    ),
    Rule(
        "rolloutStrategy",
        "has(self.type) && self.type == 'Recreate' || "
        "!has(self.maxSurge) || !(self.maxSurge == 0 || self.maxSurge == '0%') || "
        "(has(self.maxUnavailable) && !(self.maxUnavailable == 0 || self.maxUnavailable == '0%'))",
        "rolloutStrategy.maxSurge",
        "and rolloutStrategy.maxUnavailable (default: 0) cannot both be 0: no pipeline could be replaced",
        lambda name, spec: spec.rollout_strategy.can_replace,
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
    *DEVICE_RULES,
    Rule(
        "communication.env",
        f"self.all(key, key.matches('{rank_environment.ALLOWED}') && "
        f"(key.matches('{rank_environment.EXCEPTED}') || !key.matches('{rank_environment.REFUSED}')))",
        "communication.env",
        f"{rank_environment.WORDS} with worker.env",
        lambda name, spec: all(map(rank_environment.is_allowed, spec.communication.env)),
    ),
    Rule(
        "tls",
        "has(self.secretName) == (has(self.mode) && self.mode == 'secret')",
        "tls.secretName",
        "must be set if, and only if, tls.mode is secret",
        lambda name, spec: (spec.tls.secret_name is not None) == (spec.tls.mode == "secret"),
    ),
    Rule(
        "tls",
        "has(self.issuerRef) == (has(self.mode) && self.mode == 'certManager')",
        "tls.issuerRef",
        "must be set if, and only if, tls.mode is certManager",
        lambda name, spec: (spec.tls.issuer_ref is not None) == (spec.tls.mode == "certManager"),
    ),
    Rule(
        "tls",
        "!has(self.enabled) || !self.enabled || !has(self.mode) || self.mode == 'selfSigned'",
        "tls.enabled",
        "is a deprecated alias of tls.mode selfSigned: leave it out to choose another mode",
        lambda name, spec: not spec.tls.enabled or spec.tls.mode in (None, "selfSigned"),
    ),
    Rule(
        "master.extraArgs",
        cel(MASTER_OPTIONS),
        "master.extraArgs",
        sentence(MASTER_OPTIONS),
        lambda name, spec: is_free_of(spec.master.extra_args, MASTER_OPTIONS),
    ),
    Rule(
        "worker.extraArgs",
        cel(WORKER_OPTIONS),
        "worker.extraArgs",
        sentence(WORKER_OPTIONS),
        lambda name, spec: is_free_of(spec.worker.extra_args, WORKER_OPTIONS),
    ),
    Rule(
        "master",
        "self.apiProcesses == 0 || !has(self.journal) || !has(self.journal.claimName) || !self.journal.enabled",
        "master.journal.claimName",
        "cannot be used with master.apiProcesses, with which a master has no journal yet: remove one of them",
        lambda name, spec: (
            not spec.master.api_processes
            or spec.master.journal is None
            or spec.master.journal.claim_name is None
            or not spec.master.journal.enabled
        ),
    ),
    Rule(
        None,
        "!has(self.spec.tls.secretName) || !(self.spec.tls.secretName in "
        "[self.metadata.name + '-tls-master', self.metadata.name + '-issued-master'])",
        "spec.tls.secretName",
        "must not be the master's Secret of tls.mode selfSigned or certManager, whose certificate is not for the "
        "workers: use another Secret",
        lambda name, spec: spec.tls.secret_name not in (own_secret(name, MASTER), issued(name, MASTER)),
    ),
    *_map_rules(),
)


def parse(name: str, spec: Mapping[str, Any]) -> Spec:
    """Return the spec of the OrcaDeployment `name`; raise InvalidSpecError that names the first wrong field."""
    schema = spec_schema()
    try:
        stored = admitted(spec, schema)
        for problem in problems(stored, schema, "spec"):
            raise InvalidSpecError(problem[:1000])
        parsed = Spec.model_validate(stored)
    except RecursionError as error:
        raise InvalidSpecError("spec: is nested too deeply") from error
    except ValidationError as error:  # text that no API server sends, such as a lone surrogate
        field = ".".join(str(part) for part in error.errors()[0]["loc"])
        raise InvalidSpecError(f"spec.{field}: {error.errors()[0]['msg']}"[:1000]) from error
    for rule in RULES:
        if not rule.holds(name, parsed):
            raise InvalidSpecError(f"{where(rule)} {rule.message}")
    for role, settings in (("master", parsed.master), ("worker", parsed.worker)):
        for refusal in refusals(role, settings):  # no CEL: the CRD does not list the fields of a pod template
            raise InvalidSpecError(refusal)
    return parsed


def where(rule: Rule) -> str:
    """Return the path of a rule's field in YAML."""
    return rule.field if rule.path is None else f"spec.{rule.field}"
