"""Which cores a rank computes on, where several ranks share a host."""

from __future__ import annotations

import os
from collections.abc import Set

import torch


def take_share(cores: Set[int], index: int, sharers: int) -> None:
    """Gives the rank `index` of `sharers` its share of `cores`, one OpenMP thread on each.

    The calling thread and those that it makes from now on are pinned: ranks do not push each other from core to core,
    and memory lies on the node that reads it. With fewer cores than ranks nobody is pinned, each has one thread.
    """
    each = len(cores) // sharers
    if each:
        os.sched_setaffinity(0, sorted(cores)[index * each : (index + 1) * each])
    torch.set_num_threads(max(1, each))
