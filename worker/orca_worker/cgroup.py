"""CPU and memory limits and usage of this process's control groups, version 1 or 2 (kernel documentation: cgroup-v2,
sched-bwc, cgroup-v1/memory), and the memory of the host.

Limits of parent groups apply as well, so every function reads the process's own group and all its visible ancestors.
Inside a container without a cgroup namespace, /proc/self/cgroup names a path of the host, while the mount has the
container's own group at its root: missing folders are skipped, and the root remains.
`root` is `/`, except in tests.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

ROOT = Path("/")
UNLIMITED = 1 << 60
"""Version 1 reports a number of bytes above this one if there is no limit."""


def cpu_quota(root: Path = ROOT) -> float | None:
    """Return the CPU quota of this process in CPUs, e.g. 1.5; None without a limit."""
    quotas = []
    for folder in _groups("cpu", root):
        with contextlib.suppress(OSError, ValueError):  # the other version, or "max"
            quota, period = map(int, (folder / "cpu.max").read_text().split())
            quotas.append(quota / period)
        with contextlib.suppress(OSError, ValueError):
            quota, period = (int((folder / f"cpu.cfs_{name}_us").read_text()) for name in ("quota", "period"))
            if quota > 0:  # -1: no limit
                quotas.append(quota / period)
    return min(quotas, default=None)


def host_memory(root: Path = ROOT) -> int:
    """Return the bytes of the host that are available without swapping (proc(5), MemAvailable)."""
    lines = (root / "proc" / "meminfo").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))


def memory_limit(root: Path = ROOT) -> int | None:
    """Return the smallest limit in bytes, None without a limit."""
    limits = [limit for folder in _groups("memory", root) if (limit := _limit(folder)) is not None]
    return min(limits, default=None)


def memory_left(root: Path = ROOT) -> int | None:
    """Return the bytes that may still be used before a limit is reached, at least 0; None without a limit."""
    left = []
    for folder in _groups("memory", root):
        limit, used = _limit(folder), _working_set(folder)
        if limit is not None and used is not None:
            left.append(max(0, limit - used))
    return min(left, default=None)


def memory_used(root: Path = ROOT) -> int | None:
    """Return the working set in bytes of this process's own group (in a pod: of its container), None if unknown."""
    sizes = (_working_set(folder) for folder in _groups("memory", root))
    return next((used for used in sizes if used is not None), None)


def oom_kills(root: Path = ROOT) -> int:
    """Return the number of processes of this group that the kernel's OOM killer has killed; 0 if unknown."""
    for folder in _groups("memory", root):
        for name in ("memory.events", "memory.oom_control"):
            with contextlib.suppress(OSError, ValueError, KeyError):
                return _counters(folder / name)["oom_kill"]
    return 0


def _groups(controller: str, root: Path) -> Iterator[Path]:
    """Yield the folders of this process's groups under `controller`, each group before its parent."""
    mounts = root / "sys" / "fs" / "cgroup"
    try:
        lines = (root / "proc" / "self" / "cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:  # version 2, alone or beside version 1
            places = [mounts, mounts / "unified"]
        elif controller in controllers.split(","):
            places = list(dict.fromkeys((mounts / controllers, mounts / controller)))
        else:
            continue
        own = PurePosixPath(path.lstrip("/"))
        if ".." in own.parts:  # a group outside this namespace: only the root is visible
            own = PurePosixPath()
        for place in places:
            for group in (own, *own.parents):
                if (place / group).is_dir():
                    yield place / group


def _limit(folder: Path) -> int | None:
    for name in ("memory.max", "memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):  # the other version, or "max"
            limit = int((folder / name).read_text())
            return limit if limit < UNLIMITED else None
    return None


def _working_set(folder: Path) -> int | None:
    """Return the used bytes without the inactive page cache, like the kubelet.

    Files that were read once, like a checkpoint, stay in the page cache until the kernel needs the memory.
    """
    for usage, inactive in (
        ("memory.current", "inactive_file"),
        ("memory.usage_in_bytes", "total_inactive_file"),
    ):
        with contextlib.suppress(OSError, ValueError):
            used = int((folder / usage).read_text())
            droppable = 0
            with contextlib.suppress(OSError, ValueError):
                droppable = _counters(folder / "memory.stat").get(inactive, 0)
            return max(0, used - droppable)
    return None


def _counters(path: Path) -> dict[str, int]:
    return {name: int(value) for name, value in (line.split() for line in path.read_text().splitlines())}
