"""`FullyApplied` is True for OrcaDeployments that together set every field, where the cluster serves every kind.

A field that is added to the models has to be set in every_field.yaml. A field with the effect NOT_YET makes the
condition False, which then names it.
"""

from __future__ import annotations

import asyncio
import base64
import typing
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from orca_operator import names
from orca_operator.api import Spec
from orca_operator.certificates import AUTHORITIES, CERTIFICATE, KEY, KeyPair, issue, make_authority
from orca_operator.conditions import find_condition
from orca_operator.crd import crd
from orca_operator.effects import Effect, fields_that_are_set
from orca_operator.scaling import not_implemented
from orca_operator.validation import parse
from pydantic import BaseModel
from support.crdcheck import judge
from support.scenario import Player, Scenario

SPECS: dict[str, dict[str, Any]] = yaml.safe_load((Path(__file__).parent / "every_field.yaml").read_text())
ROLES = (names.MASTER, names.WORKER, names.OPERATOR)
CREATED = datetime(2026, 1, 1, tzinfo=UTC)
PASSES = 4
"""A pass creates the objects, one follows the pods, one the changes that the master was sent; one more at rest."""


def all_fields(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Yield the YAML paths of all fields; the types of the pod API count as one field."""
    for name, field in model.model_fields.items():
        path, inner = f"{prefix}{field.alias or name}", model_in(field.annotation)
        yield from [path] if inner is None else all_fields(inner, f"{path}.")


def model_in(annotation: Any) -> type[BaseModel] | None:
    """Return the model in an annotation such as `Model | None` or `list[Model]`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(filter(None, map(model_in, typing.get_args(annotation))), None)


def set_fields(part: BaseModel, prefix: str = "") -> Iterator[str]:
    """Yield the YAML paths of the fields whose value is not the default."""
    for name, field in type(part).model_fields.items():
        path, value = f"{prefix}{field.alias or name}", getattr(part, name)
        inner = [entry for entry in (value if isinstance(value, list) else [value]) if isinstance(entry, BaseModel)]
        if inner:
            yield from (found for entry in inner for found in set_fields(entry, f"{path}."))
        elif value != field.get_default(call_default_factory=True):
            yield path


def test_the_specs_set_every_field():
    found = {field for spec in SPECS.values() for field in set_fields(parse("demo", spec))}
    missing = sorted(set(all_fields(Spec)) - found)
    assert missing == [], "fields that no spec of every_field.yaml sets"


def test_a_current_server_accepts_them():
    kind = {"apiVersion": names.API_VERSION, "kind": names.KIND, "metadata": {"name": "demo", "namespace": "default"}}
    verdicts = judge(crd(), [{**kind, "spec": spec} for spec in SPECS.values()])[1:]
    assert {title: verdict.errors for title, verdict in zip(SPECS, verdicts, strict=True) if not verdict.accepted} == {}


@pytest.mark.parametrize("title", SPECS)
def test_every_field_takes_effect(title):
    spec = parse("demo", SPECS[title])
    status = asyncio.run(asyncio.wait_for(status_of(SPECS[title]), 60))
    ready, applied = (find_condition(status, kind) for kind in ("Ready", "FullyApplied"))
    assert ready["reason"] == ("Suspended" if spec.suspend else "Serving"), ready
    lacking = fields_that_are_set(spec, Effect.NOT_YET) + not_implemented(spec)
    assert applied["reason"] == ("NotYetActive" if lacking else "Applied"), applied
    assert applied["status"] == ("False" if lacking else "True")
    assert all(f"spec.{field}" in applied["message"] for field in lacking)


async def status_of(spec: dict[str, Any]) -> dict[str, Any]:
    """Return the status once all pods are ready."""
    deployment = {"metadata": {"name": "demo", "namespace": "default"}, "spec": spec}
    player = Player(Scenario(Path(), "", deployment, []))
    authority = make_authority(CREATED)
    for name in ("mine", *(names.issued("demo", role) for role in ROLES)):
        player.api.put(certificates(name, authority))
    await player._step({"what": "creation"})
    for _ in range(PASSES - 1):
        await player._step({"what": "start", "pods": {} if spec.get("suspend") else {"all": "Ready"}})
    await player.masters.close()
    assert player.api.resource is not None
    status: dict[str, Any] = player.api.resource["status"]
    return status


def certificates(name: str, authority: KeyPair) -> dict[str, Any]:
    """Return a Secret with a certificate of all roles, as a user or cert-manager creates it."""
    pair = issue(authority, [names.dns_name(role, "demo", "default") for role in ROLES], CREATED)
    data = {CERTIFICATE: pair.certificate, KEY: pair.key, AUTHORITIES: authority.certificate}
    encoded = {key: base64.b64encode(value).decode() for key, value in data.items()}
    return {"kind": "Secret", "metadata": {"name": name, "namespace": "default"}, "data": encoded}
