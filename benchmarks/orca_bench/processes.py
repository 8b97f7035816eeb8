"""The processes of an `orca serve` by name, read from proc(5)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

SOCKET = re.compile(r"worker-(\d+)\.sock")
GONE = (FileNotFoundError, ProcessLookupError, PermissionError)
"""Errors of files of a process that has ended; PermissionError: of one that nobody has waited for yet."""


def processes(server: int, ranks_per_worker: int = 1) -> dict[str, int]:
    """Return the ids of the processes of the `orca serve` with process id `server`.

    Names: `parent`, `master`, `controller 0`, `rank 0.1` (partition, index), `spare 0` (the process with torch imported
    that replaces a lost rank of worker 0), and `other 123` (process id) for others, such as the master's helpers.
    """
    found = {"parent": server}
    others = []
    for child in children(server):
        if worker := SOCKET.search(command(child)):
            found[f"controller {worker[1]}"] = child
            ranks = [pid for pid in children(child) if "orca_worker.rank" in command(pid)]
            for index, rank in enumerate(sorted(ranks, key=start)):  # a spare is the youngest
                found[f"rank {worker[1]}.{index}" if index < ranks_per_worker else f"spare {worker[1]}"] = rank
            others += [pid for pid in children(child) if pid not in ranks]
        elif command(child) == command(server):  # a forked child
            found["master"] = child
            others += children(child)
        else:
            others.append(child)
    return found | {f"other {pid}": pid for pid in others}


def workers(names: Iterable[str]) -> list[str]:
    """Return the names of the controllers and ranks among `names`."""
    return [name for name in names if name.startswith(("controller", "rank"))]


def spares(names: Iterable[str]) -> set[str]:
    """Return the names of the spares of the controllers among `names`."""
    return {name.replace("controller", "spare") for name in names if name.startswith("controller")}


def children(pid: int) -> list[int]:
    """Return the ids of a process's children, none if it has ended."""
    try:
        tasks = list(Path(f"/proc/{pid}/task").glob("*/children"))
        return [int(child) for entries in tasks for child in entries.read_text().split()]
    except GONE:
        return []


def start(pid: int) -> tuple[int, int]:
    """Return a key that orders processes by age: the kernel gives low process ids again. See proc(5), stat."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except GONE:
        return 0, pid
    return int(fields[19]), pid


def command(pid: int) -> str:
    """Return a process's command line with spaces between the arguments, "" if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except GONE:
        return ""


def with_variable(name: str, value: str) -> list[int]:
    """Return the processes of this user that were started with an environment variable of this value."""
    wanted, found = f"{name}={value}".encode(), []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if wanted in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
        except GONE:
            continue
    return found
