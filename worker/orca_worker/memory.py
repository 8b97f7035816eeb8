"""How many K/V blocks fit: the memory limit that applies to this rank, and the formula with its numbers."""

from __future__ import annotations

from pathlib import Path

import torch

CGROUP_PAIRS = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)
MEBIBYTE = 1 << 20


def free_bytes(device: torch.device) -> int:
    """Free device memory on CUDA; else the free host memory, or what the cgroup leaves if that is less."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    lines = Path("/proc/meminfo").read_text().splitlines()
    free = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    for limit, usage in CGROUP_PAIRS:
        try:
            free = min(free, int(Path(limit).read_text()) - int(Path(usage).read_text()))
        except (OSError, ValueError):  # another version of cgroups, or "max"
            continue
    return max(0, free)


def blocks_that_fit(free: int, sharers: int, utilization: float, buffers: int, block_bytes: int) -> tuple[int, str]:
    """Returns the number of blocks and its formula. Weights are loaded already, so `free` is without them."""
    blocks = max(0, int((free * utilization / sharers - buffers) // block_bytes))
    formula = (
        f"({free / MEBIBYTE:.0f} MiB free x {utilization} / {sharers} on this host - {buffers / MEBIBYTE:.0f} MiB "
        f"buffers) / {block_bytes} bytes per block = {blocks} blocks"
    )
    return blocks, formula
