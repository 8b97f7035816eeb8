"""Sums through shared memory: the same bits on every rank, and no wait for a rank that is gone."""

from __future__ import annotations

import ctypes
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from orca_kernels.cpu.library import load
from orca_worker.shared_sum import CAPACITY, LINE, SharedSum, num_bytes


def meet(path: Path, size: int, timeout: float = 30.0) -> list[SharedSum]:
    """`size` ranks in this process; each waits without the interpreter's lock."""
    path.write_bytes(bytes(num_bytes(size)))
    return [SharedSum(load(), path, rank, size, timeout) for rank in range(size)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("size", [2, 3, 5])
def test_every_rank_gets_the_sum(tmp_path, size, dtype):
    """Of many rounds, and of tensors from one element to more than a buffer holds."""
    ranks = meet(tmp_path / "memory", size)
    counts = [1, 7, 768, 3 * 768, CAPACITY // dtype.itemsize, CAPACITY // dtype.itemsize + 5, *range(1, 60)]
    generator = torch.Generator().manual_seed(size)
    parts = [[torch.randn(count, generator=generator).to(dtype) for count in counts] for _ in ranks]

    def run(rank: int) -> list[torch.Tensor]:
        return [ranks[rank].sum(x.clone()) for x in parts[rank]]

    with ThreadPoolExecutor(size) as pool:
        found = list(pool.map(run, range(size)))
    for index in range(len(counts)):
        expected = torch.stack([own[index].double() for own in parts]).sum(0)
        error = 1e-5 if dtype == torch.float32 else 2e-2
        torch.testing.assert_close(found[0][index].double(), expected, atol=error * 4, rtol=error)
        assert all(torch.equal(found[0][index], other[index]) for other in found)


def test_a_rank_that_is_gone_is_noticed(tmp_path):
    one, _ = meet(tmp_path / "memory", 2)
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    ctypes.c_int64.from_address(one._address + LINE).value = ended.pid
    begin = time.monotonic()
    with pytest.raises(RuntimeError, match="its process has exited"):
        one.sum(torch.ones(4))
    assert time.monotonic() - begin < 20, "long before the timeout"


def test_nobody_waits_without_a_bound(tmp_path):
    one, _ = meet(tmp_path / "memory", 2, timeout=0.2)
    with pytest.raises(RuntimeError, match="timeout"):
        one.sum(torch.ones(4))


@pytest.mark.parametrize("leaver", [0, 1])
def test_a_rank_that_leaves_ends_the_wait(tmp_path, leaver):
    """Its own wait, or the wait of the rank that needs its addend; from another thread."""
    ranks = meet(tmp_path / "memory", 2)
    with ThreadPoolExecutor(1) as pool:
        wait = pool.submit(ranks[0].sum, torch.ones(4))
        ranks[leaver].leave()
        with pytest.raises(RuntimeError, match="it has left the epoch"):
            wait.result(20)
