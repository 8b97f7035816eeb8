"""Resources that an `orca serve` holds: memory, descriptors and threads (proc(5)), files, requests and K/V slots.

Memory, descriptors and threads are summed up over the processes of a role: parent, master, controllers, ranks, spares,
others (such as the master's helpers) and client, which is this process. Private memory is shared with no other process,
so that it does not change with the number of processes that map the same libraries.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from orca_bench.processes import GONE

MIB = 2**20
ROLES = {"controller": "controllers", "rank": "ranks", "spare": "spares", "other": "others"}
GAUGE = re.compile(r"^orca:(num_requests_running|num_requests_waiting|kv_cache_usage_perc)\{.*\} (\S+)$", re.MULTILINE)
RUNNING, WAITING, SLOTS = "running requests", "waiting requests", "held K/V slots (fraction)"
GAUGES = {"num_requests_running": RUNNING, "num_requests_waiting": WAITING, "kv_cache_usage_perc": SLOTS}
PROCESSES = "processes"
SHARED_MEMORY = Path("/dev/shm")


@dataclass(frozen=True, slots=True)
class Usage:
    """Resources of one process. Bytes of resident memory, and of those that no other process shares."""

    resident: int
    private: int
    descriptors: int
    threads: int


def usage(pid: int) -> Usage | None:
    """Return the resources of a process, None if it has ended."""
    process = Path(f"/proc/{pid}")
    try:
        resident, private = parse_memory((process / "smaps_rollup").read_text())
        threads = parse_threads((process / "status").read_text())
        return Usage(resident, private, len(os.listdir(process / "fd")), threads)
    except (*GONE, ValueError):  # the files of a process that is ending are empty
        return None


def parse_memory(rollup: str) -> tuple[int, int]:
    """Return resident and private bytes from the text of /proc/PID/smaps_rollup; raise ValueError without them."""
    kibibytes = dict(re.findall(r"^(\w+): +(\d+) kB$", rollup, re.MULTILINE))
    if "Rss" not in kibibytes:
        raise ValueError("no memory map")
    private = int(kibibytes["Private_Clean"]) + int(kibibytes["Private_Dirty"])
    return 1024 * int(kibibytes["Rss"]), 1024 * private


def parse_threads(status: str) -> int:
    """Return the number of threads from the text of /proc/PID/status; raise ValueError without it."""
    if (threads := re.search(r"^Threads:\s+(\d+)$", status, re.MULTILINE)) is None:
        raise ValueError("no number of threads")
    return int(threads[1])


def held(server: Mapping[str, int]) -> dict[str, float]:
    """Return the resources of a server's processes (ids by name, see `processes`) and of this process, by series."""
    usages = [(role_of(name), usage(pid)) for name, pid in {**server, "client": os.getpid()}.items()]
    values = defaultdict[str, float](float)
    for role, used in usages:
        if used is not None:
            values[f"private memory, {role} (MiB)"] += used.private / MIB
            values[f"resident memory, {role} (MiB)"] += used.resident / MIB
            values[f"descriptors, {role}"] += used.descriptors
            values[f"threads, {role}"] += used.threads
    running = [used for role, used in usages if used is not None and role != "client"]
    return {PROCESSES: len(running), **values}


def role_of(name: str) -> str:
    """Return the role of a process with a name of `processes`."""
    kind = name.partition(" ")[0]
    return ROLES.get(kind, kind)


def gauges(metrics: str) -> dict[str, float]:
    """Return requests and K/V slots, by series, from the text of `GET /metrics`."""
    return {GAUGES[name]: float(value) for name, value in GAUGE.findall(metrics)}


def at_rest(series: Iterable[str]) -> list[str]:
    """Return the series that a load must not change in a server without requests.

    These are requests, K/V slots, and those of `series` that count the server's processes or their descriptors. The
    processes are counted, because a role that appears only under load has no descriptors before it.
    """
    counts = [name for name in series if name.startswith((PROCESSES, "descriptors")) and "client" not in name]
    return [RUNNING, WAITING, SLOTS, *counts]


def grown(before: Mapping[str, float], after: Mapping[str, float]) -> list[tuple[str, float]]:
    """Return the series of `at_rest` that are larger than before a load, and their values before (0 without one)."""
    return [(name, before.get(name, 0.0)) for name in at_rest(before) if after.get(name, 0.0) > before.get(name, 0.0)]


def files(temporary: Path, journal: Path) -> dict[str, float]:
    """Return the numbers of files in the server's temporary folder and in shared memory, and the journal's size."""
    return {
        "temporary files": len(temporary_files(temporary, journal)),
        "files in shared memory": len(os.listdir(SHARED_MEMORY)),
        "journal (MiB)": sum(map(_size, journal.glob("*"))) / MIB,
    }


def temporary_files(temporary: Path, journal: Path) -> list[Path]:
    """Return the files below the server's temporary folder but outside its journal."""
    paths = (Path(folder) / name for folder, _, names in os.walk(temporary) for name in names)
    return [path for path in paths if journal not in path.parents]


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:  # a file of the journal that is no longer needed
        return 0
