"""When a change of a field of the spec takes effect: `Effect`, declared in the field's annotation in api.py.

A field without an effect of its own inherits the effect of the object that contains it. The revision of a spec
(revision.py), the condition `FullyApplied` and the descriptions in the CRD are derived from these declarations.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel


class Effect(enum.Enum):
    """Effect of a changed field; the value is appended to its description (`kubectl explain`, docs/api.md)."""

    RESTARTS = "A change restarts the pods."
    LIVE = "A change takes effect immediately."
    SMALLER_IS_LIVE = "A smaller value takes effect immediately, a larger one with the next revision."
    NOT_YET = "Not implemented yet."
    NONE = "Has no effect."


@dataclass(frozen=True, slots=True)
class Leaf:
    """A field without subfields, or an optional object as a whole."""

    path: tuple[str, ...]
    """Python names, starting at the spec."""
    wire: str
    """The path in YAML, such as `scheduler.maxBatchSize`."""
    effect: Effect
    default: Any
    """The value that counts as not set."""


@functools.cache
def leaves(model: type[BaseModel]) -> tuple[Leaf, ...]:
    """Return the leaves of a model; raise TypeError for a field without an effect."""
    return tuple(_leaves(model, (), "", None))


def all_but(model: type[BaseModel], effect: Effect) -> dict[str, Any]:
    """Return the leaves with any other effect, nested as pydantic's `exclude` expects."""
    nested: dict[str, Any] = {}
    for leaf in leaves(model):
        if leaf.effect is not effect:
            place = nested
            for name in leaf.path[:-1]:
                place = place.setdefault(name, {})
            place[leaf.path[-1]] = True
    return nested


def fields_that_are_set(spec: BaseModel, effect: Effect) -> list[str]:
    """Return the YAML paths of the fields with this effect whose value is not the default."""
    return [
        leaf.wire
        for leaf in leaves(type(spec))
        if leaf.effect is effect and functools.reduce(getattr, leaf.path, spec) != leaf.default
    ]


def _leaves(model: type[BaseModel], path: tuple[str, ...], wire: str, inherited: Effect | None) -> Iterator[Leaf]:
    for name, field in model.model_fields.items():
        effect = next((mark for mark in field.metadata if isinstance(mark, Effect)), inherited)
        inner, own_wire = field.annotation, f"{wire}{field.alias or name}"
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            yield from _leaves(inner, (*path, name), f"{own_wire}.", effect)
        elif effect is None:
            raise TypeError(f"{model.__name__}.{name} declares no effect")
        else:
            yield Leaf((*path, name), own_wire, effect, field.get_default(call_default_factory=True))
