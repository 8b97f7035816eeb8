"""`is_stopped`: the state of another process, from proc(5)."""

from __future__ import annotations

from pathlib import Path


def is_stopped(pid: int) -> bool:
    """Return True if a signal such as SIGSTOP has stopped the process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    except OSError:
        return False
