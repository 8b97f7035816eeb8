"""The processes of an `orca serve`: master, controllers, ranks, and the sockets between them, read from proc(5)."""

from __future__ import annotations

import ctypes
import errno
import os
import re
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_SOCKET = re.compile(r"worker-(\d+)\.sock")
_PIDFD_GETFD = 438
"""Number of pidfd_getfd(2), which Python does not have."""
_ESTABLISHED = "01"
_CONNECTED = "03"


@dataclass(frozen=True, slots=True)
class Processes:
    """Process ids; `controllers` and `ranks` by partition. A spare rank is not among the ranks.

    A process that has ended and does not run again yet is missing.
    """

    master: int | None
    controllers: dict[int, int]
    ranks: dict[int, list[int]]

    def complete(self, partitions: int, ranks_per_worker: int) -> bool:
        """Return True if no process is missing."""
        ranks = [pids for pids in self.ranks.values() if len(pids) == ranks_per_worker]
        return self.master is not None and len(self.controllers) == len(ranks) == partitions

    @property
    def workers(self) -> set[int]:
        """The controllers and ranks of all partitions."""
        return {*self.controllers.values(), *(pid for ranks in self.ranks.values() for pid in ranks)}


def running(pid: int | None) -> int:
    """Return a process id that is not missing; raise ProcessLookupError otherwise."""
    if pid is None:
        raise ProcessLookupError("the process does not run")
    return pid


def processes(server: int, ranks_per_worker: int) -> Processes:
    """Return the processes below `orca serve` that run now."""
    masters, controllers = [], {}
    for child in _children(server):
        command = _command(child)
        if worker := _SOCKET.search(command):
            controllers[int(worker[1])] = child
        elif command == _command(server):
            masters.append(child)
    ranks = {}
    for partition, controller in controllers.items():
        own = [child for child in _children(controller) if "orca_worker.rank" in _command(child)]
        ranks[partition] = sorted(own, key=_start)[:ranks_per_worker]  # the youngest is the spare
    return Processes(masters[0] if len(masters) == 1 else None, controllers, ranks)


def memory_bytes(server: int) -> int:
    """Return the memory of all processes of the server; what several of them share counts once (PSS)."""
    total = 0
    for pid in [server, *_descendants(server)]:
        try:
            text = Path(f"/proc/{pid}/smaps_rollup").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
        total += 1024 * sum(int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:"))
    return total


def control_sockets(controller: int) -> list[int]:
    """Return the descriptors of the gRPC connections that a controller has accepted on its Unix socket."""
    connected = set()
    for line in Path("/proc/net/unix").read_text().splitlines()[1:]:
        fields = line.split()
        if len(fields) == 8 and fields[5] == _CONNECTED and _SOCKET.search(fields[7]):
            connected.add(fields[6])
    return [descriptor for descriptor, inode in _sockets(controller) if inode in connected]


def data_sockets(rank: int, neighbours: list[int]) -> list[int]:
    """Return the descriptors of a rank's TCP connections to `neighbours`."""
    theirs = {address for pid in neighbours for _, (address, _) in _tcp(pid)}
    return [descriptor for descriptor, (_, peer) in _tcp(rank) if peer in theirs]


def cut(pid: int, descriptor: int) -> bool:
    """Shut a connection of another process down, in both directions; return False if it was closed already."""
    handle = os.pidfd_open(pid)
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        copy = libc.syscall(_PIDFD_GETFD, handle, descriptor, 0)
        if copy < 0 and ctypes.get_errno() == errno.EBADF:
            return False
        if copy < 0:
            raise OSError(ctypes.get_errno(), "pidfd_getfd")
        with socket.socket(fileno=copy) as connection:
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:  # the peer has closed it
                return False
        return True
    finally:
        os.close(handle)


def cannot_cut() -> str:
    """Return why this process may not cut connections of its children, "" if it may."""
    own, other = socket.socketpair()
    with own, other, subprocess.Popen(["cat"], stdin=other, stdout=subprocess.DEVNULL) as child:
        try:
            cut(child.pid, 0)
        except (OSError, AttributeError) as error:
            child.kill()
            return f"pidfd_getfd(2): {error}"
    return ""


def _tcp(pid: int) -> Iterator[tuple[int, tuple[str, str]]]:
    """Yield (descriptor, (own address, peer's address)) of the established connections."""
    by_inode = {}
    for name in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == _ESTABLISHED:
                by_inode[fields[9]] = (fields[1], fields[2])
    for descriptor, inode in _sockets(pid):
        if inode in by_inode:
            yield descriptor, by_inode[inode]


def _sockets(pid: int) -> Iterator[tuple[int, str]]:
    """Yield (descriptor, inode) of the sockets of a process."""
    for entry in os.listdir(f"/proc/{pid}/fd"):
        try:
            target = os.readlink(f"/proc/{pid}/fd/{entry}")
        except FileNotFoundError:
            continue
        if target.startswith("socket:["):
            yield int(entry), target[8:-1]


def _descendants(pid: int) -> Iterator[int]:
    for child in _children(pid):
        yield child
        yield from _descendants(child)


def _children(pid: int) -> list[int]:
    try:
        return [
            int(child)
            for children in Path(f"/proc/{pid}/task").glob("*/children")
            for child in children.read_text().split()
        ]
    except (FileNotFoundError, ProcessLookupError):
        return []


def _start(pid: int) -> tuple[int, int]:
    """Return a key that orders processes by age: the kernel gives low process ids again. See proc(5), stat."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0, pid
    return int(fields[19]), pid


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except (FileNotFoundError, ProcessLookupError):
        return ""
