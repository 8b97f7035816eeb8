"""Length limits of a request's fields, checked before their contents.

pydantic checks the length of a list while it validates the entries, and reports every invalid entry. The validators
here run first and check only the length. `Lengths` contains the limits that depend on the model, passed as validation
context; without a context (the Python API, an OpenAPI schema) they do not apply.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Sized
from dataclasses import dataclass
from typing import Any, LiteralString, Protocol

from pydantic import AfterValidator, BeforeValidator, ValidationInfo
from pydantic_core import PydanticCustomError

from orca_master.errors import CONTEXT_EXCEEDED

CHARACTERS_PER_TOKEN = 16
"""Maximum characters of a text per token of the model's context, more than the average of texts."""
MIN_CHARACTERS = 256 << 10
"""Lower bound of the maximum characters of a text, for models with a short context."""
MAX_CHARACTERS = 8 << 20
"""Maximum characters of all prompts together."""
MAX_OPTIONS_BYTES = 64 << 10
"""Maximum size of `chat_template_kwargs`, and of the parameters of a function, as JSON."""
MAX_ENTRIES = 16384
"""Maximum parts, blocks and calls of all messages, or of all items, which the event loop handles one by one."""
MAX_DEPTH = 128
"""Maximum depth of JSON whose form is the client's; that which json and pydantic can write depends on the caller."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """Limits of one model: `max_model_len` in tokens; None: no limit."""

    max_model_len: int | None = None

    @classmethod
    def of(cls, info: ValidationInfo) -> Lengths:
        """Return the limits in the context of a validation."""
        return info.context if isinstance(info.context, cls) else cls()

    def check_tokens(self, count: int) -> None:
        """Raise PydanticCustomError for more token ids than the model's context length."""
        if self.max_model_len is not None and count > self.max_model_len:
            raise PydanticCustomError(
                CONTEXT_EXCEEDED,
                "{count} tokens: this model's maximum context length is {limit} tokens",
                {"count": count, "limit": self.max_model_len},
            )

    def check_prompts(self, count: int) -> None:
        """Raise PydanticCustomError for too many characters in all prompts together."""
        refuse_more(
            count,
            MAX_CHARACTERS,
            "{count} characters in all prompts together, at most {limit} are allowed: send several requests",
        )

    def check_characters(self, count: int) -> None:
        """Raise PydanticCustomError for a text that is too long to be tokenized."""
        if self.max_model_len is None:
            return
        limit = max(MIN_CHARACTERS, CHARACTERS_PER_TOKEN * self.max_model_len)
        if count > limit:
            raise PydanticCustomError(
                CONTEXT_EXCEEDED,
                "{count} characters exceed the limit of {limit}: the prompt is too long, this model's maximum context "
                "length is {tokens} tokens: send a shorter text, or token ids to /v1/completions or /v1/embeddings",
                {"count": count, "tokens": self.max_model_len, "limit": limit},
            )


def refuse_more(count: int, limit: int, message: LiteralString) -> None:
    """Raise PydanticCustomError with `message`, which has {count} and {limit}, if the first exceeds the second."""
    if count > limit:
        raise PydanticCustomError("too_long", message, {"count": count, "limit": limit})


def at_most(limit: int) -> BeforeValidator:
    """Return a validator that refuses lists and mappings with more than `limit` entries, with pydantic's message."""
    return BeforeValidator(lambda value: _refuse_longer(value, limit, {list: "List", dict: "Dictionary"}, "items"))


def at_most_characters(limit: int) -> BeforeValidator:
    """Return a validator that refuses texts with more than `limit` characters, with pydantic's message."""
    return BeforeValidator(lambda value: _refuse_longer(value, limit, {str: "String"}, "characters"))


def _refuse_longer(value: Any, limit: int, kinds: dict[type, str], unit: str) -> Any:
    kind = kinds.get(type(value))
    if kind is not None and len(value) > limit:
        raise PydanticCustomError(
            "too_long",
            "{kind} should have at most {limit} {unit} after validation, not {count}",
            {"kind": kind, "limit": limit, "unit": unit, "count": len(value)},
        )
    return value


def _within_context(value: Any, info: ValidationInfo) -> Any:
    """Check the number of token ids, unless a field that was validated before has the prompt cut."""
    if isinstance(value, Sized) and (info.data or {}).get("truncate_prompt_tokens") is None:
        Lengths.of(info).check_tokens(len(value))
    return value


def _check_text(text: str, info: ValidationInfo) -> str:
    Lengths.of(info).check_characters(len(text))
    return text


def is_too_deep(value: dict[str, Any] | list[Any]) -> bool:
    """Return True for a list or an object with more than MAX_DEPTH levels, itself included."""
    level = [value]
    for _ in range(MAX_DEPTH):
        parts = (entry.values() if isinstance(entry, dict) else entry for entry in level)
        level = [part for part in itertools.chain.from_iterable(parts) if isinstance(part, dict | list)]
        if not level:
            return False
    return True


def check_depth(value: dict[str, Any]) -> dict[str, Any]:
    """Return `value`; raise PydanticCustomError if it is too deep."""
    if is_too_deep(value):
        raise PydanticCustomError("too_deep", "nested more than {limit} levels deep", {"limit": MAX_DEPTH})
    return value


def _check_options(options: dict[str, Any]) -> dict[str, Any]:
    check_depth(options)
    refuse_more(len(json.dumps(options)), MAX_OPTIONS_BYTES, "{count} bytes of JSON, at most {limit} are allowed")
    return options


def _refuse_many_entries(value: Any) -> Any:
    entries = [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []
    count = sum(len(part) for entry in entries for part in entry.values() if isinstance(part, list))
    refuse_more(
        count, MAX_ENTRIES, "{count} parts and calls together, at most {limit} are allowed: join parts of texts"
    )
    return value


class Texts(Protocol):
    """Something with texts that the prompt has."""

    @property
    def num_characters(self) -> int:
        """Characters of all texts."""


def _check_texts(entries: list[Any], info: ValidationInfo) -> list[Any]:
    texts: list[Texts] = entries
    Lengths.of(info).check_characters(sum(entry.num_characters for entry in texts))
    return entries


check_texts = AfterValidator(_check_texts)
"""Checks the characters of a list of Texts together."""
few_entries = BeforeValidator(_refuse_many_entries)
"""Checks the lists in a list of objects together."""
within_context = BeforeValidator(_within_context)
check_text = AfterValidator(_check_text)
check_options = AfterValidator(_check_options)
