"""Which cores a rank computes on, where several ranks share a host."""

from __future__ import annotations

import os

import torch


def take_share_of_cores(index: int, sharers: int) -> None:
    """Gives the rank `index` of `sharers` its share of this process's cores, one OpenMP thread on each.

    The calling thread and those that it makes from now on are pinned: ranks do not push each other from core to core,
    and memory lies on the node that reads it. With fewer cores than ranks nobody is pinned, each has one thread.
    """
    cores = sorted(os.sched_getaffinity(0))
    each = len(cores) // sharers
    if each:
        os.sched_setaffinity(0, cores[index * each : (index + 1) * each])
    torch.set_num_threads(max(1, each))
