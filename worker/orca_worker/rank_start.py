"""How the rank processes of a worker are started: command line, environment, cores, and the socket to the controller.

Imports neither asyncio nor gRPC nor protobuf: `orca worker --start-ranks` starts ranks before it imports them, so that
torch, whose import takes longest, is imported meanwhile.
"""

from __future__ import annotations

import logging
import os
import socket
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from orca_protos.parent_death import bound_command

from orca_worker.cores import Processors, rank_setting

RANK_COMMAND = bound_command("orca_worker.rank")
DEFAULTS = {"THP_MEM_ALLOC_ENABLE": "1", "OPENBLAS_THREAD_TIMEOUT": "4"}
"""Variables that the environment may override. THP_MEM_ALLOC_ENABLE makes torch use huge pages: reading scattered K/V
blocks takes a fifth less time on the CPU. OPENBLAS_THREAD_TIMEOUT is the shortest: the threads that numpy's BLAS starts
when it is imported, and that nothing uses, would keep the other cores busy for a tenth of a second."""
TORCH_ENDS_RANKS = ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "TORCH_NCCL_ENABLE_MONITORING", "TORCH_NCCL_DUMP_ON_TIMEOUT")
"""Variables by which torch's watchdog, its monitor, or a signal of another rank's monitor would end a rank that has
lost another one and could serve the next epoch."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RankStart:
    """Settings that are fixed while a rank process runs: command line, environment, cores to pin to, and device."""

    command: tuple[str, ...]
    environment: Mapping[str, str]
    cores: tuple[int, ...]
    device: str

    def may_use(self, other: RankStart) -> bool:
        """Return True if a process that was started with `other`, and has loaded nothing, can become this rank."""
        return (self.command, self.environment) == (other.command, other.environment)


@dataclass(frozen=True, slots=True)
class RankPlaces:
    """`count` ranks: those from number `first` on of the `total` that compute on `device` of this machine.

    `device`: cpu or cuda; `backend`: gloo or nccl; `interface`: the network interface of the backend, "" for any.
    """

    count: int
    first: int
    total: int
    device: str
    backend: str
    interface: str

    def starts(
        self, environment: Mapping[str, str], command: Sequence[str] = RANK_COMMAND, may_pin: bool = False
    ) -> list[RankStart]:
        """Return the start settings of each rank. `may_pin`: ranks may be pinned to cores (cores.py)."""
        own = dict(environment)
        if self.interface:
            for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
                own.setdefault(name, self.interface)
        if self.backend == "nccl":
            for name in TORCH_ENDS_RANKS:
                own.setdefault(name, "0")
        processors = Processors.of_this_process()
        on_cpu = self.device == "cpu"
        starts = []
        for tensor_rank in range(self.count):
            index = self.first + tensor_rank
            setting = rank_setting(processors, index, self.total, may_pin and on_cpu, {**os.environ, **own})
            logger.info("rank %d: %s", tensor_rank, setting.description)
            device = self.device if on_cpu else f"{self.device}:{index}"
            starts.append(RankStart(tuple(command), {**own, **setting.environment}, setting.cores, device))
        return starts


@dataclass(frozen=True, slots=True)
class StartedRank:
    """A rank process, whose standard error is a pipe, and the controller's end of its socket pair."""

    process: subprocess.Popen[bytes]
    controller_end: socket.socket


def start_rank(start: RankStart) -> StartedRank:
    """Start a rank process, with its environment on top of this process's; raise OSError if it cannot be started."""
    controller_end, rank_end = socket.socketpair()
    with rank_end:
        try:
            process = subprocess.Popen(
                (*start.command, "--fd", str(rank_end.fileno())),
                pass_fds=(rank_end.fileno(),),
                stderr=subprocess.PIPE,
                env={**DEFAULTS, **os.environ, **start.environment},
            )
        except BaseException:
            controller_end.close()
            raise
    return StartedRank(process, controller_end)
