"""Which rank is to blame, where its neighbours in and beside its partition complain at the same time."""

from __future__ import annotations

import os
import signal

import httpx
import pytest
from support.checkpoints import with_long_context
from support.served import Served, descendants, eventually, serve, worker_pid

ENDLESS = {"prompt": [1, 2], "max_tokens": 8000, "stream": True, "ignore_eos": True}


@pytest.mark.exhaustive
@pytest.mark.parametrize(("partition", "tensor_rank"), [(0, 1), (1, 0)])
def test_the_killed_rank_is_the_reported_cause(checkpoint, tmp_path, partition, tensor_rank):
    """Two partitions of two ranks: all of the other three lose a neighbour in the middle of an iteration."""
    options = ("--pipeline-parallel-size", "2", "--tensor-parallel-size", "2")
    with serve(with_long_context(checkpoint("llama-gqa-tied"), tmp_path), *options) as served:
        with httpx.stream("POST", f"{served.url}/v1/completions", json=ENDLESS, timeout=100) as answer:
            lines = answer.iter_lines()
            next(lines)
            os.kill(_rank(served, partition, tensor_rank), signal.SIGKILL)
            assert eventually(lambda: any("is lost: " in line for line in served.log))
        (message,) = [line for line in served.log if "is lost: " in line]
    assert f"worker-{partition}.sock: rank {tensor_rank} ended: killed by SIGKILL" in message
    assert message.count("worker unix:") == 1, "the cause alone"


def _rank(served: Served, partition: int, tensor_rank: int) -> int:
    """Return the process id of a rank: the controller starts them in order."""
    return sorted(descendants(worker_pid(served, partition, "controller")))[tensor_rank]
