"""Ranks of one host compute on cores of their own, where there are enough."""

from __future__ import annotations

import os

import pytest
import torch
from orca_worker.cores import take_share


@pytest.mark.parametrize(
    ("allowed", "index", "sharers", "pinned", "threads"),
    [
        (8, 0, 1, [[0, 1, 2, 3, 4, 5, 6, 7]], 8),
        (8, 0, 2, [[0, 1, 2, 3]], 4),
        (8, 1, 2, [[4, 5, 6, 7]], 4),
        (7, 2, 3, [[4, 5]], 2),
        (2, 1, 2, [[1]], 1),
        (2, 3, 4, [], 1),
    ],
)
def test_shares_are_apart_and_none_is_empty(monkeypatch, allowed, index, sharers, pinned, threads):
    affinity: list[list[int]] = []
    counts: list[int] = []
    monkeypatch.setattr(os, "sched_setaffinity", lambda _, cores: affinity.append(cores))
    monkeypatch.setattr(torch, "set_num_threads", counts.append)
    take_share(set(range(allowed)), index, sharers)
    assert (affinity, counts) == (pinned, [threads])
