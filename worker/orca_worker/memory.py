"""How many K/V blocks fit: the memory that applies to this rank, and the formula with its numbers.

On the CPU the memory is what the container's limit leaves; without a limit what its request leaves, because other pods
were promised the rest of the host; without either what the host has free.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from orca_worker.cgroup import ROOT, memory_left, memory_limit, memory_used

logger = logging.getLogger(__name__)

MEBIBYTE = 1 << 20
REQUEST = "ORCA_MEMORY_REQUEST"
"""Environment variable: the container's memory request in bytes; 0, empty or absent without a request."""
REQUEST_FIELD = "spec.worker.resources.requests.memory"


@dataclass(frozen=True, slots=True)
class FreeMemory:
    """`num_bytes` that may still be used, and how they came about in words.

    `ceiling` is what there really is: larger than `num_bytes` only where a request is nearly used up. `used` counts the
    bytes of the request that are in use, 0 where no request decides.
    """

    num_bytes: int
    source: str
    ceiling: int
    used: int = 0


def free_memory(device: torch.device, root: Path = ROOT, environment: Mapping[str, str] = os.environ) -> FreeMemory:
    """Return the memory that is free for `device`; `root` and `environment` are this process's, but in tests."""
    if device.type == "cuda":
        free = torch.cuda.mem_get_info(device)[0]
        return FreeMemory(free, "of the device", free)
    lines = (root / "proc" / "meminfo").read_text().splitlines()
    available = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    of_host = f"{_mib(available)} of the host"
    if (left := memory_left(root)) is not None:
        free = min(available, left)
        limit = f"{_mib(left)} below the limit of {_mib(memory_limit(root) or 0)}"
        return FreeMemory(free, f"min({of_host}, {limit})", free)
    request, used = int(environment.get(REQUEST) or 0), memory_used(root)
    if request and used is not None:
        free = max(0, min(available, request - used))
        source = f"min({of_host}, request of {_mib(request)} - {_mib(used)} in use)"
        return FreeMemory(free, source, available, used)
    return FreeMemory(available, "of the host", available)


def blocks_that_fit(
    free: FreeMemory, sharers: int, utilization: float, buffers: int, block_bytes: int, longest: int
) -> tuple[int, str]:
    """Return the number of blocks for one of `sharers` ranks, and its formula.

    Weights are loaded already, so `free` is without them. `longest`: blocks of one sequence of the longest length. If a
    memory request does not hold these, they are taken beyond it as far as memory is there, with a warning: a pod that
    asks for too little serves, and only a limit is binding.
    """

    def fit(num_bytes: int) -> int:
        return max(0, int((num_bytes * utilization / sharers - buffers) // block_bytes))

    blocks = fit(free.num_bytes)
    formula = (
        f"({_mib(free.num_bytes)} free, {free.source}, x {utilization} / {sharers} on this host - {_mib(buffers)} "
        f"buffers) / {block_bytes} bytes per block = {blocks} blocks"
    )
    beyond = min(longest, fit(free.ceiling))
    if beyond > blocks:  # only where a request decides: else `ceiling` is what was counted above
        needed = free.used + (longest * block_bytes + buffers) * sharers / utilization
        logger.warning(
            "the memory request leaves %d K/V blocks, and one sequence of the longest length needs %d: memory beyond "
            "the request is used for %d. Set %s to at least %dMi, set a memory limit, or lower spec.model.maxModelLen",
            blocks, longest, beyond, REQUEST_FIELD, -(-needed // MEBIBYTE),
        )  # fmt: skip
        formula += f", raised to {beyond} of the {longest} that one sequence of the longest length needs"
    return max(blocks, beyond), formula


def _mib(num_bytes: int) -> str:
    return f"{num_bytes / MEBIBYTE:.0f} MiB"
