"""`--config FILE`: a YAML mapping of command-line option names to values."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from orca_protos.command_line import OneLineParser

from orca_master.commands.vllm_options import REFUSED
from orca_master.errors import ConfigurationError

MAX_BYTES = 1 << 20
"""Of the file, more than all options of a server have."""

ON_OFF = frozenset({"--deterministic"})
"""Options with the values on and off, which YAML reads as booleans."""
NO_VALUE = "a value is expected (quote a word such as 'off')"
RESOLVED = frozenset(f"tag:yaml.org,2002:{name}" for name in ("bool", "null", "merge"))
"""Types of plain scalars. Others are texts, as on a command line: 3.10 is not 3.1, and 0123 not octal."""


def with_config_file(argv: list[str], parser: argparse.ArgumentParser, positional: str | None = None) -> list[str]:
    """Return the arguments of `--config FILE`, without those that `argv` has, followed by `argv`.

    `parser`: that of the command; `positional`: the name of its only positional argument. Raises ConfigurationError.
    """
    finder = OneLineParser(prog=parser.prog, add_help=False)
    finder.add_argument("--config", type=Path)
    known, rest = finder.parse_known_args(argv)
    if known.config is None:
        return rest
    arguments: list[str] = []
    first: list[str] = []
    given = {argument.partition("=")[0].replace("_", "-") for argument in rest}
    for name, value in _values(known.config, positional).items():
        if name == positional and f"--{positional}" in given:
            continue
        if name == positional:
            if isinstance(value, bool):
                raise ConfigurationError(f"--config {known.config}: {str(name)!a}: {NO_VALUE}")
            first = [] if value is None else [str(value)]
        else:
            if fault := _fault(str(name), value, parser):
                raise ConfigurationError(f"--config {known.config}: {str(name)!a}: {fault}")
            entries = _as_arguments(str(name), value, parser)
            arguments += [entry for entry in entries if entry.partition("=")[0] not in given]
        # The only character that a command line cannot contain.
        if any("\0" in argument for argument in (*first, *arguments)):
            raise ConfigurationError(f"--config {known.config}: {str(name)!a}: a zero byte is not allowed")
    if first:
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
        root = yaml.compose(content.decode(), Loader)
        values = yaml.load(content.decode(), Loader)
    except OSError as error:
        raise ConfigurationError(f"--config {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"--config {path}: it is not UTF-8") from error
    except RecursionError as error:
        raise ConfigurationError(f"--config {path}: it is nested too deeply") from error
    except yaml.YAMLError as error:
        raise ConfigurationError(f"--config {path}: {' '.join(str(error).split())}") from error
    except (AttributeError, LookupError, ValueError) as error:  # of PyYAML, for tags as in `port: !!int x`
        raise ConfigurationError(f"--config {path}: a value does not have the form of its tag: {error}") from error
    if not isinstance(values, dict) or not isinstance(root, yaml.MappingNode):
        raise ConfigurationError(f"--config {path}: a mapping of option names to values is expected")
    given: set[str] = set()
    for key, _ in root.value:  # the mapping in Python has the last of equal names
        option = _option(str(key.value))
        if option in given:
            raise ConfigurationError(f"--config {path}: {key.value!a}: the option is given twice")
        given.add(option)
    for name, value in values.items():
        if fault := _fault_of_form(name, value, positional):
            raise ConfigurationError(f"--config {path}: {str(name)!a}: {fault}")
    return values


def _fault_of_form(name: object, value: Any, positional: str | None) -> str:
    """Return why an entry is neither a scalar nor a list of scalars, "" if it is."""
    if name == "config":
        return "a file cannot name another"
    if _option(str(name)).removeprefix("--") in REFUSED:
        return ""  # by the parser, also a mapping, which vLLM has for some
    entries = value if isinstance(value, list) and name != positional else [value]
    if any(isinstance(entry, dict | list) for entry in entries):
        return "a value is expected" if name == positional else "a value or a list of values is expected"
    return ""


def _fault(name: str, value: Any, parser: argparse.ArgumentParser) -> str:
    """Return why an entry is not valid, "" if it may be; argparse would take a part of it for another argument."""
    option = _option(name)
    action = parser._option_string_actions.get(option)
    if action is None:
        return "there is no such option"
    refused = option.removeprefix("--") in REFUSED  # by the parser, with the way out
    if value is None or refused or (isinstance(value, bool) and option in ON_OFF):
        return ""
    if action.nargs == 0:
        return "" if isinstance(value, bool) else "true or false is expected"
    if isinstance(value, list) and not isinstance(action, argparse._AppendAction):
        return f"one value is expected, not a list: write {name}: VALUE"
    entries = value if isinstance(value, list) else [value]
    if any(entry is None or isinstance(entry, bool) for entry in entries):
        return f"{NO_VALUE}; leave the option out for its default"
    return ""


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _as_arguments(name: str, value: Any, parser: argparse.ArgumentParser) -> list[str]:
    option = _option(name)
    if isinstance(value, bool) and option in ON_OFF:
        return [f"{option}={'on' if value else 'off'}"]
    if value is True:
        return [option]
    if value is False:
        opposite = f"--{option.removeprefix('--no-')}" if option.startswith("--no-") else f"--no-{option[2:]}"
        return [opposite] if opposite in parser._option_string_actions else []
    if value is None:
        return []
    return [f"{option}={entry}" for entry in (value if isinstance(value, list) else [value])]
