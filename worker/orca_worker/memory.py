"""Number of K/V blocks that fit into the memory of a rank, and the formula with its numbers.

On the CPU, free memory is the unused part of the container's memory limit; without a limit, of its request, because the
rest of the host is reserved for other pods; without both, the available memory of the host.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from orca_worker.cgroup import ROOT, host_memory, memory_left, memory_limit, memory_used

logger = logging.getLogger(__name__)

MEBIBYTE = 1 << 20
MOST_BLOCKS = (1 << 31) - 1
"""Block ids are int32 (`RaggedBatch.block_table`), and the last block of the pools is for padding rows."""
REQUEST = "ORCA_MEMORY_REQUEST"
"""Environment variable: the container's memory request in bytes; 0, empty or absent without a request."""
REQUEST_FIELD = "spec.worker.resources.requests.memory"


@dataclass(frozen=True, slots=True)
class FreeMemory:
    """`num_bytes` that may still be used, and their `source` as text.

    `ceiling`: bytes that are physically available, more than `num_bytes` only if a memory request is nearly used up.
    `used`: bytes of the request in use, 0 if no request applies. `shared`: where the ranks are that share the bytes.
    """

    num_bytes: int
    source: str
    ceiling: int
    used: int = 0
    shared: str = "on this host"


def free_memory(device: torch.device, root: Path = ROOT, environment: Mapping[str, str] = os.environ) -> FreeMemory:
    """Return the memory that is free for `device`; tests replace `root` and `environment`."""
    if device.type == "cuda":
        free = torch.cuda.mem_get_info(device)[0]
        return FreeMemory(free, "of the device", free, shared="on this device")
    available = host_memory(root)
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
    free: FreeMemory, sharers: int, utilization: float, buffers: int, block_bytes: int, longest: int, previous: int = 0
) -> tuple[int, str]:
    """Return the number of blocks for one of `sharers` ranks, and its formula.

    `free` does not include the weights, which are loaded already. `longest`: blocks of one sequence of the maximum
    length. If they exceed a memory request, memory beyond the request is used as far as available, with a warning:
    a pod with too small a request still serves, and only a limit is strict.

    `previous`: blocks that a rank before this one had. The ranks beside it hold theirs, so that the free memory is not
    shared; if it holds that many blocks, they fit.
    """

    def fit(num_bytes: int, sharers: int = sharers) -> int:
        return min(max(0, int((num_bytes * utilization / sharers - buffers) // block_bytes)), MOST_BLOCKS)

    blocks = fit(free.num_bytes)
    formula = (
        f"({_mib(free.num_bytes)} free, {free.source}, x {utilization} / {sharers} {free.shared} - {_mib(buffers)} "
        f"buffers) / {block_bytes} bytes per block = {blocks} blocks"
    )
    if blocks < previous <= fit(free.num_bytes, sharers=1):
        blocks = previous
        formula += f"; unshared it holds the {blocks} of before"
    beyond = min(longest, fit(free.ceiling))
    if beyond > blocks:  # only if a request applies: otherwise `ceiling` equals `num_bytes`
        needed = free.used + (longest * block_bytes + buffers) * sharers / utilization
        logger.warning(
            "the memory request leaves %d K/V blocks, but one sequence of the maximum length needs %d: memory beyond "
            "the request is used for %d. Set %s to at least %dMi, set a memory limit, or lower spec.model.maxModelLen",
            blocks, longest, beyond, REQUEST_FIELD, -(-needed // MEBIBYTE),
        )  # fmt: skip
        formula += f", raised to {beyond} of the {longest} that one sequence of the maximum length needs"
    return max(blocks, beyond), formula


def _mib(num_bytes: int) -> str:
    return f"{num_bytes / MEBIBYTE:.0f} MiB"
