"""tokenizer_config.json of a model, and special_tokens_map.json of an older one: special tokens and chat templates."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from orca_protos.model_files import CONFIG_BYTES, MissingFileError, checked, read_object
from pydantic import BaseModel, ConfigDict, Field

CONFIG_FILE, TOKENS_FILE = "tokenizer_config.json", "special_tokens_map.json"
SPECIAL_TOKENS = ("bos_token", "eos_token", "pad_token", "unk_token")
DEFAULT, TOOL_USE = "default", "tool_use"
"""Names of the templates that are used, of a model with several."""
TOKENIZER_CONFIG_BYTES = 8 * CONFIG_BYTES
"""Maximum size of either file; the first lists the added tokens."""


class SpecialToken(BaseModel):
    """A token with properties, of which only the text is read."""

    content: str


class NamedTemplate(BaseModel):
    """One of several templates (an older file format)."""

    name: str
    template: str


class TokenizerConfigFile(BaseModel):
    """The fields of tokenizer_config.json that are read."""

    model_config = ConfigDict(strict=True, extra="ignore")

    bos_token: str | SpecialToken | None = None
    eos_token: str | SpecialToken | None = None
    pad_token: str | SpecialToken | None = None
    unk_token: str | SpecialToken | None = None
    chat_template: str | Annotated[list[NamedTemplate], Field(max_length=64)] | None = None
    add_eos_token: Any = None
    """True if a text ends with the eos_token. Other values mean nothing."""

    @property
    def special_tokens(self) -> dict[str, str]:
        """Texts of the special tokens that the file names, by field."""
        return {
            name: value if isinstance(value, str) else value.content
            for name in SPECIAL_TOKENS
            if (value := getattr(self, name)) is not None
        }

    @property
    def templates(self) -> dict[str, str]:
        """Chat templates by name; a single template is the default."""
        if isinstance(self.chat_template, list):
            return {entry.name: entry.template for entry in self.chat_template}
        return {} if self.chat_template is None else {DEFAULT: self.chat_template}


def read_tokenizer_config(model_path: Path) -> TokenizerConfigFile:
    """Return the content of a model's file, without any field if the file is absent; raise FileError.

    As in transformers, special_tokens_map.json overrides its special tokens unless the file has `added_tokens_decoder`,
    as files of transformers 4.34 to 4.x have it.
    """
    raw = _object(model_path, CONFIG_FILE)
    config = checked(TokenizerConfigFile, raw, model_path / CONFIG_FILE)
    if "added_tokens_decoder" in raw:
        return config
    tokens = _object(model_path, TOKENS_FILE)
    given = {name: tokens[name] for name in SPECIAL_TOKENS if name in tokens}
    update = checked(TokenizerConfigFile, given, model_path / TOKENS_FILE)
    return config.model_copy(update={name: getattr(update, name) for name in given})


def _object(model_path: Path, name: str) -> dict[str, Any]:
    try:
        return read_object(model_path, name, TOKENIZER_CONFIG_BYTES)
    except MissingFileError:
        return {}
