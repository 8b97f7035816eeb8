"""`describe_exit`: the exit code of a process in words."""

from __future__ import annotations

import signal


def describe_exit(code: int) -> str:
    """Describe an exit code as `subprocess` gives it: negative, the number of the signal that killed the process."""
    if code >= 0:
        return f"exit code {code}"
    name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"  # real-time signals
    return f"killed by {name}"
