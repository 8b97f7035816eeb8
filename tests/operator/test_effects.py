"""When a change of a field takes effect: declared at the field, followed by revision, status and docs/api.md."""

from __future__ import annotations

from typing import Annotated

import pytest
from orca_operator.api import Spec
from orca_operator.api_types import Part
from orca_operator.effects import Effect, all_but, fields_that_are_set, leaves
from orca_operator.revision import revision_hash
from orca_operator.schema import spec_schema
from support.orcadeployments import MINIMAL, merged
from support.specs import changed

BASE = Spec.model_validate(MINIMAL)


class Inner(Part):
    live: Annotated[int, Effect.LIVE] = 1
    inherits: int = 2


class Outer(Part):
    inner: Annotated[Inner, Effect.RESTARTS] = Inner()
    optional: Annotated[Inner | None, Effect.NOT_YET] = None
    size_limit: Annotated[int, Effect.LIVE] = 3


def test_an_effect_is_declared_at_the_field_or_inherited():
    assert [(leaf.wire, leaf.effect) for leaf in leaves(Outer)] == [
        ("inner.live", Effect.LIVE),
        ("inner.inherits", Effect.RESTARTS),
        ("optional", Effect.NOT_YET),
        ("sizeLimit", Effect.LIVE),
    ]
    assert all_but(Outer, Effect.RESTARTS) == {"inner": {"live": True}, "optional": True, "size_limit": True}
    assert fields_that_are_set(Outer(optional=Inner()), Effect.NOT_YET) == ["optional"]
    assert fields_that_are_set(Outer(), Effect.NOT_YET) == []


def test_a_field_without_an_effect_is_an_error():
    with pytest.raises(TypeError, match=r"Inner\.inherits declares no effect"):
        leaves(Inner)


@pytest.mark.parametrize("leaf", leaves(Spec), ids=lambda leaf: leaf.wire)
def test_a_change_makes_a_new_revision_if_and_only_if_the_field_restarts_pods(leaf):
    other = changed(BASE, leaf)
    assert other != BASE
    assert (revision_hash(other) != revision_hash(BASE)) == (leaf.effect is Effect.RESTARTS)


def test_descriptions_say_when_a_change_takes_effect():
    fields = spec_schema()["properties"]
    assert fields["replicas"]["description"].endswith("A change takes effect immediately.")
    assert fields["worker"]["properties"]["env"]["description"].endswith("A change restarts the pods.")
    assert fields["startupTimeoutSeconds"]["description"].endswith("Not implemented yet.")
    assert fields["autoscaling"]["description"].endswith("A change takes effect immediately.")
    assert fields["drainTimeoutSeconds"]["description"].endswith("immediately, a larger one with the next revision.")


def test_specs_that_differ_in_live_fields_alone_share_their_pods():
    live = merged(MINIMAL, replicas=9, suspend=True, scheduler={"maxBatchSize": 3}, tls={"enabled": True})
    assert revision_hash(Spec.model_validate(live)) == revision_hash(BASE)
