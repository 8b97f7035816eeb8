"""`ChatTemplate`: messages → prompt text, by the model's own Jinja template, in a sandbox.

Where a template is looked for, in this order: `--chat-template FILE`, chat_template.jinja of the model directory,
`chat_template` in its tokenizer_config.json. The environment is the one that templates on the hub are written for:
blocks trimmed, `raise_exception`, `strftime_now`, `tojson`, loop controls, and the tokenizer's special tokens.
"""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

import jinja2
import jinja2.sandbox

from orca_master.errors import ConfigurationError, RequestError
from orca_master.openai_types import ChatMessage
from orca_master.tokenizer import read_json

SPECIAL_TOKENS = ("bos_token", "eos_token", "pad_token", "unk_token")


class ChatTemplate:
    """A compiled template, or none. Raises ConfigurationError for one that cannot be read or compiled."""

    def __init__(self, model_path: Path, file: Path | None = None) -> None:
        configuration = read_json(model_path / "tokenizer_config.json")
        self._special_tokens = {
            name: value["content"] if isinstance(value, dict) else value
            for name in SPECIAL_TOKENS
            if (value := configuration.get(name)) is not None
        }
        source = _source(model_path, file, configuration)
        environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
        try:
            self._template = environment.from_string(source) if source is not None else None
        except jinja2.TemplateSyntaxError as error:
            raise ConfigurationError(f"chat template, line {error.lineno}: {error.message}") from error

    def render(self, messages: list[ChatMessage], add_generation_prompt: bool, options: dict[str, Any]) -> str:
        """Returns the prompt; raises RequestError if there is no template or it refuses the messages."""
        if self._template is None:
            raise RequestError(
                "this model has no chat template: use /v1/completions, or start the server with --chat-template",
                "messages",
            )
        wire = [{**message.model_dump(exclude_none=True), "content": message.text} for message in messages]
        try:
            return self._template.render(
                **{**self._special_tokens, **options},
                messages=wire,
                add_generation_prompt=add_generation_prompt,
            )
        except (jinja2.TemplateError, TypeError, ValueError, KeyError, ArithmeticError) as error:
            raise RequestError(f"the chat template refuses these messages: {error}", "messages") from error


def _source(model_path: Path, file: Path | None, configuration: dict[str, Any]) -> str | None:
    path = file or model_path / "chat_template.jinja"
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        if file is not None:
            raise ConfigurationError(f"--chat-template {file}: {error.strerror}") from error
    except OSError as error:
        raise ConfigurationError(f"{path}: {error.strerror}") from error
    template = configuration.get("chat_template")
    if isinstance(template, list):  # several named ones, an older form
        named = {entry["name"]: entry["template"] for entry in template}
        template = named.get("default")
    return template


def _to_json(value: Any, indent: int | None = None, ensure_ascii: bool = False) -> str:
    return json.dumps(value, indent=indent, ensure_ascii=ensure_ascii)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)
