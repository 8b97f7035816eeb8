"""`Message`: the base class of the messages between operator and master, and the rules of their versions.

Operator and master are not upgraded at the same time, so each must read messages of the other's version:

- A field that is added after version 0 has `Since(version)` in its annotation and a default that changes nothing.
- Writers omit newer fields that have their default: a message without new settings is the same in every version, also
  for readers that reject unknown fields, as masters of version 0 do.
- Readers ignore unknown fields and log each once (`read`, `UnknownFields`).
- A writer that knows the reader's version sends `wire(version)`; `unknown_to(version)` lists the omitted fields.

Version 0 is the format before this package (tests/support/version_0.py). Every change increments the version.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Self, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializationInfo,
    SerializerFunctionWrapHandler,
    ValidationError,
    ValidationInfo,
    model_serializer,
    model_validator,
)
from pydantic.alias_generators import to_camel
from pydantic.fields import FieldInfo
from pydantic_core import from_json

VERSION = 12
"""Version of this package's messages. 1: masters report `contractVersion`, readers ignore unknown fields. 2:
`SchedulerKnobs.maxExpectedWaitSeconds`. 3: `StateReport.journal` and `journalFailure`. 4: `StateReport.inForce`;
`SchedulerKnobs.stallTimeoutSeconds`, `recoveryTimeoutSeconds`, `admission` and `policy`. 5:
`SchedulerKnobs.drainTimeoutSeconds`. 6: `StateReport.idleSeconds` and `hasBacklog`; `Topology.closed`;
`Topology.pipelines` may be empty. 7: `ModelSpec.quantization`. 8: `ModelSpec.kv_cache_dtype`. 9:
`ModelSpec.quantization` may be w8a8. 10: `Communication.device`; `ModelSpec.adapters`. 11: `ModelSpec.draft_path`. 12:
`ModelSpec.quantization` may be w4a8."""
MOST_UNKNOWN_FIELDS = 1000
"""Bound on stored names of unknown fields, so that a sender cannot exhaust the reader's memory."""
LONGEST_NAME = 80
"""Characters of an unknown field's name that are stored and logged."""

Positive = Annotated[int, Field(ge=1)]


@dataclass(frozen=True, slots=True)
class Since:
    """Annotation of a field: the version of the contract that added it."""

    version: int


class Message(BaseModel):
    """A message, or a part of a message: camelCase on the wire."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="ignore", frozen=True)

    def wire(self, version: int = VERSION) -> dict[str, Any]:
        """Return the message as JSON values, for a reader of `version`."""
        return self.model_dump(mode="json", by_alias=True, context=version)

    def known_to(self, version: int) -> Self:
        """Return the message without the fields that a reader of `version` does not know."""
        return type(self).model_validate(self.wire(version))

    def unknown_to(self, version: int) -> list[str]:
        """Return the fields that are set and that a reader of `version` does not know."""
        return list(dict.fromkeys(_missing(self.wire(), self.wire(version), "")))

    @model_validator(mode="before")
    @classmethod
    def _note_unknown_fields(cls, wire: Any, info: ValidationInfo) -> Any:
        if isinstance(info.context, set) and isinstance(wire, dict):
            known = {field.alias for field in cls.model_fields.values()} | set(cls.model_fields)
            info.context.update(f"{cls.__name__}.{name}" for name in wire if name not in known)
        return wire

    # pydantic 2.10 would look for the annotation's names in the module of each subclass.
    @model_serializer(mode="wrap", return_type=dict)
    def _leave_newer_fields_out(
        self, serialize: SerializerFunctionWrapHandler, info: SerializationInfo
    ) -> dict[str, Any]:
        wire: dict[str, Any] = serialize(self)
        version = info.context if isinstance(info.context, int) else VERSION
        for name, field in type(self).model_fields.items():
            since = _since(field)
            has_default = getattr(self, name) == field.get_default(call_default_factory=True)
            if since > version or (since and has_default):
                wire.pop(name, None)
                wire.pop(field.alias or name, None)
        return wire


MessageT = TypeVar("MessageT", bound=Message)


def read(model: type[MessageT], text: bytes) -> tuple[MessageT, frozenset[str]]:
    """Return a message from JSON, and its unknown fields as CLASS.FIELD.

    Raises ValueError that names the first invalid field.
    """
    unknown: set[str] = set()
    try:
        message = model.model_validate(from_json(text), context=unknown)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "message"
        raise ValueError(f"{where}: {first['msg']}") from error
    except (ValueError, RecursionError) as error:
        raise ValueError(f"message: not JSON: {error}") from error
    return message, frozenset(unknown)


class UnknownFields:
    """Logs each unknown field once."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._known: set[str] = set()

    def log(self, sender: str, fields: Iterable[str]) -> None:
        """Log one line with the first ten of `fields` that have not been logged before."""
        new = sorted({name[:LONGEST_NAME] for name in fields} - self._known)[:10]
        if new and len(self._known) < MOST_UNKNOWN_FIELDS:
            self._known.update(new)
            self._logger.warning("%s: ignored fields unknown to this version: %r", sender, ", ".join(new))


def _since(field: FieldInfo) -> int:
    """Return the version that added a field."""
    return next((mark.version for mark in field.metadata if isinstance(mark, Since)), 0)


def _missing(whole: Mapping[str, Any], part: Mapping[str, Any], prefix: str) -> Iterator[str]:
    """Yield the paths in `whole` that are not in `part`; [] stands for any entry of a list."""
    for name, value in whole.items():
        path = f"{prefix}{name}"
        if name not in part:
            yield path
        elif isinstance(value, dict):
            yield from _missing(value, part[name], f"{path}.")
        elif isinstance(value, list):
            for entry, other in zip(value, part[name], strict=True):
                if isinstance(entry, dict):
                    yield from _missing(entry, other, f"{path}[].")
