"""`describe_exit`: the exit code of a process in words."""

from __future__ import annotations

import signal


def describe_exit(code: int) -> str:
    """Describe an exit code as `subprocess` gives it: negative, the number of the signal that killed the process."""
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
