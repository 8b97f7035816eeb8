"""One table of specs for every rule; the Python form and the CEL form must agree on each of them."""

from __future__ import annotations

from typing import Any

import celpy
import pytest
from orca_operator.api import Spec
from orca_operator.crd import crd
from orca_operator.validation import RULES, InvalidSpecError, parse, where
from support.orcadeployments import MINIMAL, merged

HUB = {"uri": "hf://a/b"}
FILE = MINIMAL["model"]

# (name, spec, the field that is blamed or None)
TABLE: list[tuple[str, dict[str, Any], str | None]] = [
    ("demo", MINIMAL, None),
    ("a" * 36, MINIMAL, None),
    ("a" * 37, MINIMAL, "metadata.name"),
    ("a.b", MINIMAL, "metadata.name"),
    ("1a", MINIMAL, "metadata.name"),
    ("a-", MINIMAL, "metadata.name"),
    ("demo", {"model": {"uri": "pvc://claim/../x"}}, "spec.model.uri"),
    ("demo", {"model": {"uri": "pvc://claim/x"}}, None),
    ("demo", {"model": {**FILE, "cache": {"sizeLimit": "1Gi"}}}, "spec.model.cache"),
    ("demo", {"model": {**HUB, "cache": {"sizeLimit": "1Gi"}}}, None),
    ("demo", {"model": {**FILE, "revision": "main"}}, "spec.model.revision"),
    ("demo", {"model": {**HUB, "revision": "main"}}, None),
    ("demo", {"model": {**FILE, "secretRef": {"name": "x"}}}, "spec.model.secretRef"),
    ("demo", {"model": {**HUB, "secretRef": {"name": "x"}}}, None),
    ("demo", merged(MINIMAL, scheduler={"maxBatchSize": 32, "tokenBudget": 31}), "spec.scheduler.tokenBudget"),
    ("demo", merged(MINIMAL, scheduler={"maxBatchSize": 32, "tokenBudget": 32}), None),
    ("demo", merged(MINIMAL, autoscaling={"minReplicas": 3, "maxReplicas": 2}), "spec.autoscaling.minReplicas"),
    ("demo", merged(MINIMAL, autoscaling={"minReplicas": 2, "maxReplicas": 2}), None),
    ("demo", merged(MINIMAL, rolloutStrategy={"maxSurge": 0, "maxUnavailable": 0}), "spec.rolloutStrategy.maxSurge"),
    ("demo", merged(MINIMAL, rolloutStrategy={"maxSurge": 1, "maxUnavailable": 0}), None),
    ("demo", merged(MINIMAL, startupTimeoutSeconds=1801), "spec.startupTimeoutSeconds"),
    ("demo", merged(MINIMAL, startupTimeoutSeconds=1801, progressDeadlineSeconds=1801), None),
    (
        "demo",
        merged(MINIMAL, communication={"backend": "gloo", "rdmaResource": "a/b"}),
        "spec.communication.rdmaResource",
    ),
    ("demo", merged(MINIMAL, communication={"rdmaResource": "a/b"}), None),
    ("demo", {"model": {**FILE, "dtype": "float16"}, "communication": {"backend": "gloo"}}, "spec.model.dtype"),
    ("demo", {"model": {**FILE, "dtype": "float16"}}, None),
]


def defaulted(spec: dict[str, Any]) -> dict[str, Any]:
    """As the API server stores it: defaults filled in, unset optional fields absent."""
    return Spec.model_validate(spec).model_dump(by_alias=True, exclude_none=True)


def holds_in_cel(rule, name: str, spec: dict[str, Any]) -> bool:
    """Evaluates the rule's CEL form where the API server would."""
    whole = {"metadata": {"name": name}, "spec": defaulted(spec)}
    value: Any = whole if rule.path is None else whole["spec"]
    if rule.path:
        if rule.path not in value:
            return True  # rules of absent objects are not evaluated
        value = value[rule.path]
    environment = celpy.Environment()
    program = environment.program(environment.compile(rule.cel))
    return bool(program.evaluate({"self": celpy.json_to_cel(value)}))


@pytest.mark.parametrize(("name", "spec", "field"), TABLE)
def test_both_forms_agree(name, spec, field):
    parsed = Spec.model_validate(spec)
    for rule in RULES:
        assert rule.holds(name, parsed) == holds_in_cel(rule, name, spec), where(rule)
    if field is None:
        parse(name, spec)
    else:
        with pytest.raises(InvalidSpecError, match=rf"^{field} "):
            parse(name, spec)


def test_every_rule_has_a_row_that_breaks_it_alone():
    for rule in RULES:
        breaking = [
            row
            for row in TABLE
            if [other for other in RULES if not other.holds(row[0], Spec.model_validate(row[1]))] == [rule]
        ]
        assert breaking, where(rule)


def test_every_rule_is_in_the_crd_and_not_in_the_legacy_one():
    def found(node: Any) -> list[str]:
        rules = [entry["rule"] for entry in node.get("x-kubernetes-validations", [])]
        for child in node.get("properties", {}).values():
            rules += found(child)
        return rules

    schema = crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    assert sorted(found(schema)) == sorted(rule.cel for rule in RULES)
    legacy = crd(with_rules=False)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    assert found(legacy) == []


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({}, "spec.model"),
        ({"model": {}}, "spec.model.uri"),
        ({"model": {"uri": "http://x/y"}}, "spec.model.uri"),
        ({"model": {"uri": "hf://only"}}, "spec.model.uri"),
        ({"model": {**FILE, "dtype": "int8"}}, "spec.model.dtype"),
        (merged(MINIMAL, replicas=-1), "spec.replicas"),
        (merged(MINIMAL, parallelism={"tensorParallelSize": 0}), "spec.parallelism.tensorParallelSize"),
        (merged(MINIMAL, scheduler={"kvSlots": 15}), "spec.scheduler.kvSlots"),
        (merged(MINIMAL, worker={"sharedMemorySize": "much"}), "spec.worker.sharedMemorySize"),
        (merged(MINIMAL, communication={"backend": "mpi"}), "spec.communication.backend"),
        (merged(MINIMAL, drainTimeoutSeconds=0), "spec.drainTimeoutSeconds"),
        (merged(MINIMAL, master={"apiProcesses": -1}), "spec.master.apiProcesses"),
    ],
)
def test_what_the_schema_refuses_is_named(spec, field):
    with pytest.raises(InvalidSpecError, match=rf"^{field}: "):
        parse("demo", spec)
