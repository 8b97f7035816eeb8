"""The exit code of a process, as `subprocess` gives it: negative, the number of the signal that killed the process."""

from __future__ import annotations

import signal

SENT = frozenset({signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGKILL, signal.SIGTERM})
"""Signals that other processes send; the other deadly signals report an error of the process itself, as SIGSEGV."""


def describe_exit(code: int) -> str:
    """Return an exit code in words."""
    if code >= 0:
        return f"exit code {code}"
    name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"  # real-time signals
    return f"killed by {name}"


def is_sent(code: int) -> bool:
    """Return True if a signal of another process ended the process."""
    return -code in SENT
