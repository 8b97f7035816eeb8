"""Checks tokenizer, stop tokens and chat template of a model in a process with limits of memory and time.

    python -m orca_master.commands.text_check FOLDER [--chat-template FILE]

Loads and tries them as a server would; on an error prints one line and exits with code 2.
"""

from __future__ import annotations

import argparse
import os
import resource
import sys
from pathlib import Path

import jinja2
from orca_protos.command_line import one_line

from orca_master.commands.preflight import CPU_SECONDS, MEMORY_BYTES
from orca_master.errors import ConfigurationError, RequestError
from orca_master.text.chat_template import ChatTemplate
from orca_master.text.template_process import Renderer
from orca_master.text.tokenizer import TextCodec

PROBES = ("Hello, world! 12345 \n", "a" * 40 + "!", "1" * 40 + "a", " " * 40 + "\n" * 8 + "x", "é漢🙂\u200d" * 8)
"""Texts that trigger catastrophic backtracking in regular expressions."""


def try_text(folder: Path, chat_template: Path | None) -> None:
    """Load and try tokenizer and chat template in this process; raise ConfigurationError."""
    codec = TextCodec(folder)
    template = ChatTemplate(folder, chat_template)
    try:
        Renderer(template.sources, template.special_tokens)
        if codec.has_tokenizer:
            for text in PROBES:
                codec.decode(codec.encode(text))
    except jinja2.TemplateSyntaxError as error:
        raise ConfigurationError(f"{folder}: chat template, line {error.lineno}: {error.message}") from error
    except RecursionError as error:
        raise ConfigurationError(f"{folder}: chat template: nested too deeply") from error
    except RequestError as error:
        raise ConfigurationError(f"{folder / 'tokenizer.json'}: {error}") from error


def main(argv: list[str]) -> int:
    """Return exit code 0, 2 for an unsuitable model, or 1 if the check itself fails."""
    parser = argparse.ArgumentParser(prog="orca_master.commands.text_check", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--chat-template", type=Path)
    arguments = parser.parse_args(argv)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # The tokenizer prints its panics to stderr: discard that output, because only one line is reported.
    report = os.fdopen(os.dup(2), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    code, line = 2, ""
    try:
        try_text(arguments.folder, arguments.chat_template)
        code = 0
    except ConfigurationError as error:
        line = str(error)
    except MemoryError:
        line = f"{arguments.folder}: the tokenizer or template needs more than {MEMORY_BYTES >> 20} MiB"
    except Exception as error:  # a bug of the check or of a library
        code, line = 1, f"{type(error).__name__}: {' '.join(str(error).split())}"
    if line:
        print(one_line(line), file=report, flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
