"""The kinds of faults, where each can happen, and how it is made."""

from __future__ import annotations

import os
import random
import resource
import signal
from collections.abc import Callable
from dataclasses import dataclass

from chaos.processes import Processes, control_sockets, cut, data_sockets, running

Make = Callable[[Processes, int, random.Random], set[int]]
"""Makes a fault at a partition and returns the processes that may end with it. Raises ProcessLookupError if its target
is missing."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of fault.

    `places`: number of partitions where it happens, of P. `in_recovery`: it can also happen while the engine recovers.
    """

    name: str
    make: Make
    places: Callable[[int], int] = lambda partitions: partitions
    in_recovery: bool = True


def _signal_rank(number: signal.Signals) -> Make:
    def make(target: Processes, place: int, rng: random.Random) -> set[int]:
        victim = rng.choice(target.ranks.get(place) or [None])
        os.kill(running(victim), number)
        return {running(victim)}

    return make


def _signal_controller(number: signal.Signals) -> Make:
    def make(target: Processes, place: int, rng: random.Random) -> set[int]:
        controller = running(target.controllers.get(place))
        os.kill(controller, number)
        return {controller, *target.ranks[place]}  # a rank ends with its controller

    return make


def _cut_control(target: Processes, place: int, rng: random.Random) -> set[int]:
    """Cut all connections that a controller has accepted: the master's, and other controllers'."""
    controller = running(target.controllers.get(place))
    return _cut([(controller, descriptor) for descriptor in control_sockets(controller)])


def _cut_data(target: Processes, place: int, rng: random.Random) -> set[int]:
    """Cut all connections between the ranks of two partitions."""
    ranks, neighbours = (target.ranks.get(partition, []) for partition in (place, place + 1))
    return _cut([(rank, number) for rank in ranks for number in data_sockets(rank, neighbours)])


def _cut(connections: list[tuple[int, int]]) -> set[int]:
    """Cut (process id, descriptor); raise ProcessLookupError if none was open."""
    if not sum(cut(*connection) for connection in connections):
        raise ProcessLookupError("no connection is open")
    return set()


def _kill_master(target: Processes, place: int, rng: random.Random) -> set[int]:
    os.kill(running(target.master), signal.SIGKILL)
    return set()


def _fill_disk(target: Processes, place: int, rng: random.Random) -> set[int]:
    """Make every further write of the master to a file fail, of its log and of its journal."""
    limit_files(running(target.master), 0)
    return set()


def limit_files(pid: int, num_bytes: int) -> None:
    """Bound the size of the files that a process writes, RLIM_INFINITY: no bound."""
    _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (num_bytes, hard))


def _once(partitions: int) -> int:
    return 1


FULL_DISK = Kind("full disk for log and journal", _fill_disk, _once, in_recovery=False)
KILLED_MASTER = Kind("master killed", _kill_master, _once)
# Losses by an exception count against the requests in the iteration, which fail after the third without a token.
FAILED_KERNEL = Kind("exception in a kernel", _signal_rank(signal.SIGUSR2), in_recovery=False)
KINDS = (
    Kind("rank killed", _signal_rank(signal.SIGKILL)),
    Kind("rank stopped", _signal_rank(signal.SIGSTOP)),
    Kind("controller killed", _signal_controller(signal.SIGKILL)),
    Kind("controller stopped", _signal_controller(signal.SIGSTOP)),
    Kind("control connections cut", _cut_control),
    Kind("data connections cut", _cut_data, lambda partitions: partitions - 1),
    FAILED_KERNEL,
    KILLED_MASTER,
    FULL_DISK,
)


FOLLOWERS = 2
"""Faults that follow on one."""
SHARE_OF_FOLLOWERS = 0.6
"""More than half, because an engine may have recovered before its follower is made."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault to make, and those to make while the engine recovers from it."""

    kind: Kind
    place: int
    followers: tuple[Fault, ...] = ()

    def __str__(self) -> str:
        return ", then ".join((f"{self.kind.name} at {self.place}", *map(str, self.followers)))


def everywhere(partitions: int, repetitions: int) -> list[Fault]:
    """Return every kind at every place `repetitions` times."""
    return [
        Fault(kind, place) for kind in KINDS for place in range(kind.places(partitions)) for _ in range(repetitions)
    ]


def combined(faults: list[Fault], rng: random.Random) -> list[Fault]:
    """Return the faults in a random order, SHARE_OF_FOLLOWERS of them as followers, two of a fault."""
    rng.shuffle(faults)
    followers = [fault for fault in faults if fault.kind.in_recovery][: round(len(faults) * SHARE_OF_FOLLOWERS)]
    chosen = {id(fault) for fault in followers}
    combined = []
    for fault in faults:
        if id(fault) in chosen:
            continue
        own: list[Fault] = []
        if fault.kind is not FULL_DISK:  # serving goes on: there is no recovery
            own, followers = followers[:FOLLOWERS], followers[FOLLOWERS:]
        combined.append(Fault(fault.kind, fault.place, tuple(own)))
    rng.shuffle(combined)
    return combined + followers
