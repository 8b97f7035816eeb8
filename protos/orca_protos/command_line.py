"""What the `orca` commands share on the command line: errors of one line, and ports."""

from __future__ import annotations

import argparse
from typing import NoReturn


class OneLineParser(argparse.ArgumentParser):
    """An ArgumentParser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        """Print the line and exit with code 2."""
        self.exit(2, f"{self.prog}: error: {message}\n")


def port(text: str) -> int:
    """Return an argparse type: a TCP port; 0 lets the kernel choose."""
    if not (text.isdecimal() and len(text) <= 5 and int(text) <= 65535):
        raise argparse.ArgumentTypeError(f"{text!r} is not a port from 0 to 65535")
    return int(text)
