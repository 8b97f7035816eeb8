"""Common parts of the `orca` commands' parsers: one-line errors, addresses and port numbers."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

UNIX = "unix:"
"""Begins the address of a Unix socket, as in gRPC."""
WAYS_OUT = (
    "give --tls-dir DIR (tls.crt, tls.key and ca.crt), or --insecure if no other client can reach the port "
    "(docs/contracts.md, section 6)"
)
"""Remedy in the error of a command without certificates on a TCP address."""


class OneLineParser(argparse.ArgumentParser):
    """An ArgumentParser whose errors are one line. Options cannot be abbreviated: a later one could begin alike.

    Names of options may have underscores in place of hyphens, as in vLLM.
    """

    def __init__(self, **fields: Any) -> None:
        super().__init__(**{"allow_abbrev": False, **fields})

    def parse_known_args(  # type: ignore[override]  # typeshed has an overload for each kind of namespace
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """See ArgumentParser; `parse_args` calls it, too."""
        arguments = list(sys.argv[1:] if args is None else args)
        num_options = arguments.index("--") if "--" in arguments else len(arguments)
        arguments[:num_options] = map(self._with_hyphens, arguments[:num_options])
        return super().parse_known_args(arguments, namespace)

    def _with_hyphens(self, argument: str) -> str:
        """Return an argument with hyphens for the underscores in the name of an option, unchanged if it is none."""
        name, equals, value = argument.partition("=")
        option = name.replace("_", "-")
        return option + equals + value if option in self._option_string_actions else argument

    def error(self, message: str) -> NoReturn:
        """Print the line and exit with code 2."""
        self.exit(2, f"{self.prog}: error: {one_line(message)}\n")


def one_line(text: str) -> str:
    """Return a text with its line breaks and other control characters, such as those of a path, as escape sequences."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def port(text: str) -> int:
    """Convert an argument to a TCP port (argparse type); 0 lets the kernel choose."""
    if not (text.isdecimal() and len(text) <= 5 and int(text) <= 65535):
        raise argparse.ArgumentTypeError(f"{text!r} is not a port from 0 to 65535")
    return int(text)
