"""One table of specs, two judges: the API server's own code under the generated CRD, and the operator's `parse`.

They must accept and refuse the same specs, name the same field, and end with the same defaults.
"""

from __future__ import annotations

import copy
import functools
import random
import re
from typing import Any

import pytest
from orca_operator.api import Spec
from orca_operator.crd import crd
from orca_operator.schema import spec_schema
from orca_operator.structural import admitted, problems
from orca_operator.validation import RULES, InvalidSpecError, parse, where
from support.crdcheck import judge, resource
from support.orcadeployments import MINIMAL, merged
from support.spec_table import RULES as RULE_ROWS
from support.spec_table import TABLE

UNKNOWN = [
    ({"modle": {}}, "spec.modle"),
    ({"worker": {"env": [{"name": "A", "vale": "1"}]}}, "spec.worker.env[0].vale"),
    ({"worker": {"tolerations": [{"key": "a", "efect": "x"}]}}, "spec.worker.tolerations[0].efect"),
    ({"worker": {"volumeMounts": [{"name": "a", "mountPath": "/a", "ro": 1}]}}, "spec.worker.volumeMounts[0].ro"),
    ({"worker": {"resources": {"limit": {}}}}, "spec.worker.resources.limit"),
]  # fmt: skip
"""Fields that the server drops (`kubectl apply` refuses them before)."""
KEPT = [
    {"volumes": [{"name": "a", "futureSource": {"x": [1]}, "emptyDir": {"futureField": True}}]},
    {"affinity": {"futureAffinity": {"a": {}}, "nodeAffinity": {"future": 1}}},
    {"initContainers": [{"name": "a", "future": 1, "resources": {"future": {}}, "env": [{"name": "A", "future": 1}]}]},
]  # fmt: skip
"""Fields of later versions of Kubernetes, which both pass on."""


@pytest.mark.parametrize(("name", "spec", "field"), TABLE, ids=lambda value: value if isinstance(value, str) else "")
def test_the_operator(name, spec, field):
    assert blamed(name, spec, field) == (field or "")


def blamed(name: str, spec: dict[str, Any], field: str | None) -> str:
    """Return the field that the operator refuses, its own words if it is another one, "" if it accepts."""
    try:
        parse(name, spec)
    except InvalidSpecError as refusal:
        return named([str(refusal)], field)
    return ""


def named(errors: list[str], field: str | None) -> str:
    """Return the field if a message names it, else the messages."""
    if field and any(re.search(rf"(^|[ :]){re.escape(field)}[ :]", error) for error in errors):
        return field
    return "; ".join(errors)


@pytest.mark.long
def test_the_server_judges_every_row_like_the_operator():
    verdicts = judge(crd(), [resource(name, spec) for name, spec, _ in TABLE])[1:]
    lines, differences = [], []
    for (name, spec, field), verdict in zip(TABLE, verdicts, strict=True):
        both = named(verdict.errors, field), blamed(name, spec, field)
        lines.append(f"{both[0] or 'accepted':60}{both[1] or 'accepted':60}{name} {spec}"[:240])
        if both != (field or "", field or "") or verdict.accepted != (field is None):
            differences.append(lines[-1])
    print(f"{'API server':60}{'operator':60}spec", *lines, sep="\n")  # pytest -s shows it
    assert not differences


def test_the_server_stores_every_row_like_the_operator():
    """Unknown fields, nulls and defaults, of valid and invalid specs. Rules change nothing that is stored."""
    verdicts = judge(crd(with_rules=False), [resource(name, spec) for name, spec, _ in TABLE])[1:]
    for (name, spec, field), verdict in zip(TABLE, verdicts, strict=True):
        stored = verdict.defaulted["spec"]
        assert admitted(spec, spec_schema()) == stored
        if field is None:
            parsed = parse(name, spec)
            assert parsed == parse(name, stored)
            assert without_absent(parsed.model_dump(by_alias=True)) == without_absent(stored)


def without_absent(value: Any) -> Any:
    """Remove unset optional fields, and empty lists and strings: the CRD has no defaults for them."""
    if isinstance(value, dict):
        return {key: without_absent(entry) for key, entry in value.items() if entry not in (None, [], "")}
    return value


def test_every_default_of_the_models_is_one_of_the_server():
    stored = judge(crd(), [resource("demo", MINIMAL)])[1].defaulted["spec"]
    assert without_absent(Spec.model_validate(MINIMAL).model_dump(by_alias=True)) == stored


def test_every_rule_has_a_row_that_breaks_it_alone():
    broken = [
        [rule for rule in RULES if not rule.holds(name, Spec.model_validate(admitted(spec, spec_schema())))]
        for name, spec, _ in RULE_ROWS
    ]
    for rule in RULES:
        assert [rule] in broken, where(rule)


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        (merged(MINIMAL, scheduler={"kvSlots": 2**63 - 1024}), None),
        (merged(MINIMAL, scheduler={"kvSlots": 2**63}), "spec.scheduler.kvSlots"),
        (merged(MINIMAL, scheduler={"kvSlots": 1e30}), "spec.scheduler.kvSlots"),
        (merged(MINIMAL, autoscaling={"targetQueueDepth": 1e25}), "spec.autoscaling.targetQueueDepth"),
        (merged(MINIMAL, worker={"tolerations": [{"tolerationSeconds": 2**70}]}), "tolerationSeconds"),
    ],
)
def test_integers_have_64_bits(spec, field):
    """Not part of the table: a JSON number of this size is stored rounded."""
    verdict = judge(crd(with_rules=False), [resource("demo", spec)])[1]
    assert verdict.accepted == (field is None)
    if field is None:
        parse("demo", spec)
        return
    assert any(field in error for error in verdict.errors)
    with pytest.raises(InvalidSpecError, match=re.escape(field)):
        parse("demo", spec)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model": {"uri": "file:///m", "name": "\ud800"}}, "spec.model.name"),
        (
            {"worker": {"affinity": functools.reduce(lambda inner, _: {"x": inner}, range(5000), {})}},
            "nested too deeply",
        ),
    ],
)
def test_what_no_server_sends_is_refused_all_the_same(changes, words):
    with pytest.raises(InvalidSpecError, match=words):
        parse("demo", {"model": {"uri": "file:///m"}, **changes})


def test_every_rule_is_in_the_crd_and_not_in_the_legacy_one():
    def written(node: Any) -> list[str]:
        rules = [entry["rule"] for entry in node.get("x-kubernetes-validations", [])]
        for child in node.get("properties", {}).values():
            rules += written(child)
        return rules

    schema = crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    assert sorted(written(schema)) == sorted(rule.cel for rule in RULES)
    legacy = crd(with_rules=False)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    assert written(legacy) == []


def test_unknown_fields_are_refused_by_kubectl_and_dropped_from_what_is_stored():
    specs = [{**MINIMAL, **settings} for settings, _ in UNKNOWN]
    verdicts = judge(crd(), [resource("demo", spec) for spec in specs])[1:]
    for spec, (_, path), verdict in zip(specs, UNKNOWN, verdicts, strict=True):
        assert verdict.errors == [f'unknown field "{path}"']
        assert admitted(spec, spec_schema()) == verdict.defaulted["spec"]
        assert f"'{path.rpartition('.')[2]}':" not in str(parse("demo", spec).model_dump(by_alias=True))


@pytest.mark.parametrize("settings", KEPT, ids=lambda settings: next(iter(settings)))
def test_unknown_fields_are_kept_where_kubernetes_adds_some(settings):
    spec = {**MINIMAL, "worker": settings}
    (field,) = settings
    assert parse("demo", spec).model_dump(by_alias=True)["worker"][field] == settings[field]
    verdict = judge(crd(), [resource("demo", spec)])[1]
    assert verdict.accepted, verdict.errors
    assert verdict.defaulted["spec"]["worker"][field] == settings[field]


@pytest.mark.exhaustive
def test_both_agree_on_specs_that_were_damaged_at_random():
    """Rows with up to three values replaced by values of other types; without rules, which assume the schema."""
    rng = random.Random(14)
    values = [None, True, "", "x", -1, 0, 3, 1.5, 2.0, [], {}, [None], [{}], {"a": None}, {"a": 1}, "8Gi", "NoExecute"]
    originals = [spec for _, spec, _ in TABLE if spec] + [{**MINIMAL, "worker": settings} for settings in KEPT]
    specs = []
    for _ in range(500):
        spec = copy.deepcopy(rng.choice(originals))
        for _ in range(rng.randint(1, 3)):
            place = rng.choice(list(containers(spec)))
            key = rng.choice(list(place) if isinstance(place, dict) else range(len(place)))
            place[key] = copy.deepcopy(rng.choice(values))
        specs.append({**MINIMAL, **spec} if rng.random() < 0.7 else spec)
    verdicts = judge(crd(with_rules=False), [resource("demo", spec) for spec in specs])[1:]
    num_accepted = 0
    for spec, verdict in zip(specs, verdicts, strict=True):
        errors = [error for error in verdict.errors if not error.startswith("unknown field")]
        stored = admitted(spec, spec_schema())
        assert bool(errors) == any(problems(stored, spec_schema(), "spec")), (spec, errors)
        assert errors or stored == verdict.defaulted["spec"], spec
        num_accepted += not errors
    assert 20 < num_accepted < 480


def containers(value: Any) -> Any:
    """Yield every dictionary and list in a value, itself included, that is not empty."""
    if value and isinstance(value, dict | list):
        yield value
        for child in value.values() if isinstance(value, dict) else value:
            yield from containers(child)
