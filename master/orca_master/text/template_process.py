"""Process that renders chat templates, which are untrusted programs of a model.

    python -m orca_master.text.template_process

Reads frames from standard input and answers each on standard output; a frame is 4 bytes of length, big-endian, and
JSON. The first frame is {"sources", "special_tokens"}, with the templates by name, each further frame
{"name", "variables", "limit"}, with the limit of the text in characters. Answers are {"text"}, {} to the first frame,
or {"error"}. A frame that takes more than CPU_SECONDS of processor time ends the process (SIGPROF); processor time does
not depend on the load of the machine. The process ends with its parent, which closes the pipe.

The environment follows the templates on the Hugging Face hub: trimmed blocks, `raise_exception`, `strftime_now`,
`tojson`, loop controls, blocks of `generation`, and the tokenizer's special tokens.
"""

from __future__ import annotations

import datetime
import json
import resource
import signal
import sys
from typing import Any, BinaryIO

import jinja2
import jinja2.sandbox
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser

from orca_master.text.process_frames import encode_frame, read_content

CPU_SECONDS = 2.0
CPU_SECONDS_PER_MEBIBYTE = 0.5
"""Added to CPU_SECONDS per MiB of a frame, for long conversations."""
MEMORY_BYTES = 512 << 20
"""Limit of the address space, which fits frames of the largest bodies and their rendered text."""
FRAME_BYTES = 256 << 20
NOT_FOR_TEMPLATES = ("lipsum",)
"""Jinja globals that are removed, because exploits use the attributes of such functions."""


class GenerationBlock(Extension):
    """`{% generation %}` … `{% endgeneration %}`, which marks the text of the assistant for training: its body."""

    tags = {"generation"}  # noqa: RUF012, the type is that of the base class

    def parse(self, parser: Parser) -> nodes.Node:
        """Return a scope with the statements of the block, as variables set in the block end with the block."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class Renderer:
    """The compiled templates of a model, by name. Raises jinja2.TemplateSyntaxError."""

    def __init__(self, sources: dict[str, str], special_tokens: dict[str, str]) -> None:
        environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", GenerationBlock]
        )
        for name in NOT_FOR_TEMPLATES:
            del environment.globals[name]
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
        self._special_tokens = special_tokens
        self._templates = {name: environment.from_string(source) for name, source in sources.items()}

    def render(self, name: str, variables: dict[str, Any], limit: int) -> str:
        """Return a template's text; raise ValueError beyond `limit` characters, and whatever the template raises."""
        parts, length = [], 0
        for part in self._templates[name].generate(**{**self._special_tokens, **variables}):
            length += len(part)
            if length > limit:
                raise ValueError(f"the text is longer than {limit} characters")
            parts.append(part)
        return "".join(parts)


def answer(renderer: Renderer | None, frame: dict[str, Any]) -> tuple[Renderer | None, dict[str, str]]:
    """Return the renderer for the next frames, and the answer to this frame."""
    try:
        if renderer is None:
            return Renderer(frame["sources"], frame["special_tokens"]), {}
        return renderer, {"text": renderer.render(frame["name"], frame["variables"], frame["limit"])}
    except jinja2.TemplateSyntaxError as error:
        return renderer, {"error": f"line {error.lineno}: {error.message}"}
    except MemoryError:
        return renderer, {"error": f"more than {MEMORY_BYTES >> 20} MiB of memory are needed"}
    except RecursionError:
        return renderer, {"error": "nested too deeply"}
    except Exception as error:  # a template may raise anything
        return renderer, {"error": str(error) or type(error).__name__}


def read_frame(file: BinaryIO) -> dict[str, Any] | None:
    """Return the next frame, None at the end of the input."""
    if (content := read_content(file)) is None:
        return None
    _limit_processor_time(CPU_SECONDS + CPU_SECONDS_PER_MEBIBYTE * len(content) / (1 << 20))
    frame: dict[str, Any] = json.loads(content)
    return frame


def _limit_processor_time(seconds: float) -> None:
    signal.setitimer(signal.ITIMER_PROF, seconds)


def _to_json(
    x: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Return the JSON of a value; transformers has these parameters, in this order."""
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def main() -> int:
    """Answer frames until the input ends."""
    for number in (signal.SIGINT, signal.SIGTERM):  # the end of the input ends this process
        signal.signal(number, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    renderer: Renderer | None = None
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    while True:
        try:
            if (frame := read_frame(source)) is None:
                return 0
            renderer, reply = answer(renderer, frame)
            content = encode_frame(reply)
        except MemoryError:
            content = encode_frame({"error": f"more than {MEMORY_BYTES >> 20} MiB of memory are needed"})
        _limit_processor_time(0)
        sink.write(content)
        sink.flush()


if __name__ == "__main__":
    sys.exit(main())
