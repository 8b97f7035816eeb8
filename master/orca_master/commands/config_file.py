"""`--config FILE`: a YAML mapping of command-line option names to values."""

from __future__ import annotations

import argparse
from collections.abc import Collection
from pathlib import Path
from typing import Any

from orca_protos.command_line import OneLineParser

from orca_master.commands.vllm_options import REFUSED
from orca_master.errors import ConfigurationError

MAX_BYTES = 1 << 20
"""Of the file, more than all options of a server have."""

ON_OFF = frozenset({"--deterministic"})
"""Options with the values on and off, which YAML reads as booleans."""
RESOLVED = frozenset(f"tag:yaml.org,2002:{name}" for name in ("bool", "null", "merge"))
"""Types of plain scalars. Others are texts, as on a command line: 3.10 is not 3.1, and 0123 not octal."""


def with_config_file(
    argv: list[str], parser: argparse.ArgumentParser | None = None, positional: str | None = None
) -> list[str]:
    """Return the arguments of `--config FILE`, without those that `argv` has, followed by `argv`.

    `parser`: that of the command; `positional`: the name of its only positional argument. Raises ConfigurationError.
    """
    finder = OneLineParser(prog=parser.prog if parser is not None else "orca", add_help=False)
    finder.add_argument("--config", type=Path)
    known, rest = finder.parse_known_args(argv)
    if known.config is None:
        return rest
    arguments: list[str] = []
    first: list[str] = []
    given = {argument.partition("=")[0] for argument in rest}
    for name, value in _values(known.config, positional).items():
        if name == positional:
            first = [] if value is None else [str(value)]
        else:
            if parser is not None and (fault := _fault(str(name), value, parser)):
                raise ConfigurationError(f"--config {known.config}: {str(name)!a}: {fault}")
            arguments += [
                entry for entry in _as_arguments(str(name), value, parser) if entry.partition("=")[0] not in given
            ]
        # The only character that a command line cannot contain.
        if any("\0" in argument for argument in (*first, *arguments)):
            raise ConfigurationError(f"--config {known.config}: {str(name)!a}: a zero byte is not allowed")
    if parser is not None and first:
        _, unknown = parser.parse_known_args([*first, *arguments, *rest])
        if any(not argument.startswith("-") for argument in unknown):  # a second positional argument
            first = []
    return [*first, *arguments, *rest]


def _values(path: Path, positional: str | None) -> dict[object, Any]:
    """Return the values of the file by option, each a scalar or a list of scalars; raise ConfigurationError."""
    import yaml  # only for this option: every start would pay

    class Loader(yaml.SafeLoader):
        """The resolvers of a loader belong to its class."""

    Loader.yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in resolvers if tag in RESOLVED]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise ConfigurationError(f"--config {path}: it has more than {MAX_BYTES >> 20} MiB")
        values = yaml.load(content.decode(), Loader)
    except OSError as error:
        raise ConfigurationError(f"--config {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"--config {path}: it is not UTF-8") from error
    except yaml.YAMLError as error:
        raise ConfigurationError(f"--config {path}: {' '.join(str(error).split())}") from error
    if not isinstance(values, dict):
        raise ConfigurationError(f"--config {path}: a mapping of option names to values is expected")
    for name, value in values.items():
        if str(name).replace("_", "-") in REFUSED:
            continue  # also with a mapping, as in vLLM
        entries = value if isinstance(value, list) and name != positional else [value]
        if any(isinstance(entry, dict | list) for entry in entries):
            kind = "a value" if name == positional else "a value or a list of values"
            raise ConfigurationError(f"--config {path}: {str(name)!a}: {kind} is expected")
        if name == "config":
            raise ConfigurationError(f"--config {path}: 'config': a file cannot name another")
    return values


def _fault(name: str, value: Any, parser: argparse.ArgumentParser) -> str:
    """Return why an entry is not valid, "" if it may be; argparse would take a part of it for another argument."""
    action = parser._option_string_actions.get(_option(name))
    if action is None:
        return "there is no such option"
    takes_value = action.nargs not in (0, "?") and _option(name) not in ON_OFF
    return "a value is expected" if value is True and takes_value else ""


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _as_arguments(name: str, value: Any, parser: argparse.ArgumentParser | None) -> list[str]:
    option = _option(name)
    if isinstance(value, bool) and option in ON_OFF:
        return [f"{option}={'on' if value else 'off'}"]
    if value is True:
        return [option]
    opposite = option.replace("--", "--no-", 1)
    if value is False and (opposite in _options(parser) or option.startswith("--enable-")):
        return [opposite]
    if value is False or value is None:
        return []
    return [f"{option}={entry}" for entry in (value if isinstance(value, list) else [value])]


def _options(parser: argparse.ArgumentParser | None) -> Collection[str]:
    return () if parser is None else parser._option_string_actions
