"""What the control group of this process says about memory, version 1 or 2 (Linux kernel documentation, cgroup-v2)."""

from __future__ import annotations

from pathlib import Path

EVENTS = (Path("/sys/fs/cgroup/memory.events"), Path("/sys/fs/cgroup/memory/memory.oom_control"))
LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
UNLIMITED = 1 << 60
"""Version 1 writes a huge number where there is no limit."""


def oom_kills() -> int:
    """How many processes of this group the kernel has killed for memory; 0 where it does not say."""
    for path in EVENTS:
        try:
            counts = dict(line.split() for line in path.read_text().splitlines())
            return int(counts["oom_kill"])
        except (OSError, ValueError, KeyError):
            continue
    return 0


def memory_limit() -> int | None:
    """The limit in bytes, None if there is none."""
    for path in LIMITS:
        try:
            limit = int(path.read_text())
        except (OSError, ValueError):  # another version, or "max"
            continue
        return limit if limit < UNLIMITED else None
    return None
