"""Collectives of the ranks of one partition: rank 0's tokens, with shared memory and without."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from orca_kernels.cpu.library import load
from orca_worker.errors import NeighbourError
from orca_worker.shared_sum import SharedSum, num_bytes
from orca_worker.tensor_parallel_group import TensorParallelGroup

TOKENS = [0, 1, 50_256, 2**24 - 1]
GLOO = """
import os, sys, torch
import torch.distributed as dist
from orca_worker.tensor_parallel_group import TensorParallelGroup

path, rank, *tokens = sys.argv[1], *map(int, sys.argv[2:])
dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=3)
mine = torch.tensor(tokens if rank == 0 else [0] * len(tokens))
print(TensorParallelGroup(rank, 3).from_first(mine).tolist(), flush=True)
dist.barrier()
os._exit(0)  # as a rank does: threads of gloo may still wait
"""


def test_tokens_through_shared_memory(tmp_path):
    path = tmp_path / "memory"
    path.write_bytes(bytes(num_bytes(3)))
    groups = [TensorParallelGroup(rank, 3) for rank in range(3)]
    for group in groups:
        group.shared = SharedSum(load(), path, group.rank, 3, 30.0)

    def broadcast(group: TensorParallelGroup) -> list[int]:
        tokens = torch.tensor(TOKENS) if group.rank == 0 else torch.zeros(len(TOKENS), dtype=torch.int64)
        return group.from_first(tokens).tolist()

    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(broadcast, groups)) == [TOKENS] * 3


@pytest.mark.long
def test_tokens_through_gloo(tmp_path):
    command = [sys.executable, "-c", GLOO, str(tmp_path / "rendezvous")]
    ranks = [
        subprocess.Popen([*command, str(rank), *map(str, TOKENS)], stdout=subprocess.PIPE, text=True)
        for rank in range(3)
    ]
    assert [rank.communicate(timeout=120)[0].strip() for rank in ranks] == [str(TOKENS)] * 3


def test_a_failed_sum_names_the_ranks_one_of_which_is_lost(tmp_path):
    path = tmp_path / "memory"
    path.write_bytes(bytes(num_bytes(2)))
    group = TensorParallelGroup(1, 2)
    group.others = [4]
    group.shared = SharedSum(load(), path, 1, 2, 30.0)
    group.shared.leave()
    with pytest.raises(NeighbourError, match="rank 1 of this worker lost another rank: it has left") as error:
        group.from_first(torch.zeros(1, dtype=torch.int64))
    assert error.value.lost_ranks == [4]


def test_one_rank_keeps_its_tokens():
    assert TensorParallelGroup().from_first(torch.tensor(TOKENS)).tolist() == TOKENS
