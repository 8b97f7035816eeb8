"""`--config FILE`: a YAML mapping of command-line option names to values."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from orca_master.errors import ConfigurationError

ON_OFF = frozenset({"--deterministic"})
"""Options with the values on and off, which YAML reads as booleans."""


def with_config_file(
    argv: list[str], parser: argparse.ArgumentParser | None = None, positional: str | None = None
) -> list[str]:
    """Return the arguments of `--config FILE`, without those that `argv` has, followed by `argv`.

    `positional` is the name of the only positional argument of `parser`. Raises ConfigurationError.
    """
    finder = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    finder.add_argument("--config", type=Path)
    known, rest = finder.parse_known_args(argv)
    if known.config is None:
        return rest
    import yaml  # only for this option: every start would pay

    try:
        values = yaml.safe_load(known.config.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(f"--config {known.config}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"--config {known.config}: it is not UTF-8") from error
    except yaml.YAMLError as error:
        raise ConfigurationError(f"--config {known.config}: {' '.join(str(error).split())}") from error
    if not isinstance(values, dict):
        raise ConfigurationError(f"--config {known.config}: a mapping of option names to values is expected")
    arguments: list[str] = []
    first: list[str] = []
    given = {argument.partition("=")[0] for argument in rest}
    for name, value in values.items():
        if name == positional:
            first = [str(value)]
        else:
            arguments += [entry for entry in _as_arguments(str(name), value) if entry.partition("=")[0] not in given]
        # The only character that a command line cannot contain.
        if any("\0" in argument for argument in (*first, *arguments)):
            raise ConfigurationError(f"--config {known.config}: {str(name)!a}: a zero byte is not allowed")
    if parser is not None and first:
        _, unknown = parser.parse_known_args([*first, *arguments, *rest])
        if any(not argument.startswith("-") for argument in unknown):  # a second positional argument
            first = []
    return [*first, *arguments, *rest]


def _as_arguments(name: str, value: Any) -> list[str]:
    option = f"--{name.replace('_', '-')}"
    if isinstance(value, bool) and option in ON_OFF:
        return [f"{option}={'on' if value else 'off'}"]
    if value is True:
        return [option]
    if value is False and name.replace("_", "-").startswith(
        "enable-"
    ):  # such an option has the counterpart --no-enable-X
        return [option.replace("--enable-", "--no-enable-")]
    if value is False or value is None:
        return []
    return [f"{option}={entry}" for entry in (value if isinstance(value, list) else [value])]
