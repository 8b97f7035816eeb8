"""`SymmetricSum` over a played memory of GPUs: which tensors it takes, the sums, and torch's functions by name."""

from __future__ import annotations

import inspect
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist
from orca_worker import tensor_parallel_group
from orca_worker.errors import NeighbourError
from orca_worker.symmetric_sum import CAPACITY, SymmetricSum, unreadable_gpu
from orca_worker.tensor_parallel_group import TensorParallelGroup
from torch.distributed import _symmetric_memory

CPU = torch.device("cpu")
GROUP = cast(Any, SimpleNamespace(group_name="17"))
SECONDS = 60


class Node:
    """The GPUs of a machine: the buffers of all ranks."""

    def __init__(self, size: int) -> None:
        self.buffers: dict[int, torch.Tensor] = {}
        self.barrier = threading.Barrier(size, timeout=SECONDS)


class Memory:
    """One rank's symmetric memory: its kernel reads the buffers of all ranks, and ends when all ranks have read."""

    def __init__(self, node: Node, rank: int) -> None:
        self.node = node
        self.rank = rank
        self.calls: list[tuple[int, str]] = []

    def empty(self, num_bytes: int, device: torch.device) -> torch.Tensor:
        return torch.empty(num_bytes, dtype=torch.uint8, device=device)

    def rendezvous(self, buffer: torch.Tensor, group: Any) -> None:
        assert group is GROUP
        self.node.buffers[self.rank] = buffer
        self.node.barrier.wait()

    def can_read(self, device: torch.device, other: int) -> bool:
        return other != 3

    def all_reduce(self, addend: torch.Tensor, group: str) -> torch.Tensor:
        assert addend.data_ptr() == self.node.buffers[self.rank].data_ptr()
        self.calls.append((addend.nbytes, group))
        self.node.barrier.wait()
        addends = [
            buffer[: addend.nbytes].view(addend.dtype).view(addend.shape)
            for _, buffer in sorted(self.node.buffers.items())
        ]
        total = torch.stack(addends).sum(0)
        self.node.barrier.wait()
        return total


def on_all_ranks(size: int, work: Any) -> list[Any]:
    """Run `work(rank, sum)` on the ranks of a node."""
    node = Node(size)

    def run(rank: int) -> Any:
        return work(rank, SymmetricSum(GROUP, CPU, Memory(node, rank)))

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(run, range(size)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", [2, 3])
def test_sums_of_all_ranks_one_after_the_other(size, dtype):
    """In one buffer, which the next sum overwrites."""
    shapes = [(1, 8), (5, 16), (CAPACITY // 64 // dtype.itemsize, 64), (2, 8)]

    def work(rank: int, total: SymmetricSum) -> list[torch.Tensor]:
        sums = []
        for number, shape in enumerate(shapes):
            x = torch.full(shape, float(rank + 1 + number), dtype=dtype)
            assert total.accepts(x)
            sums.append(total.sum(x))
            assert x.unique().tolist() == [rank + 1 + number]
        return sums

    for sums in on_all_ranks(size, work):
        for number, (found, shape) in enumerate(zip(sums, shapes, strict=True)):
            assert (found.shape, found.dtype) == (shape, dtype)
            assert found.unique().tolist() == [sum(rank + 1 + number for rank in range(size))]


@pytest.mark.parametrize(
    ("x", "accepted"),
    [
        (torch.zeros(CAPACITY // 4), True),
        (torch.zeros(CAPACITY // 4 + 4), False),
        (torch.zeros(1, 8, dtype=torch.bfloat16), True),
        (torch.zeros(8, dtype=torch.float16), False),
        (torch.zeros(8, dtype=torch.int64), False),
        (torch.zeros(3, 3), False),
        (torch.zeros(8, 8).t(), False),
        (torch.zeros(0, 8), False),
    ],
    ids=["512 KB", "more", "bfloat16", "float16", "integers", "no whole words", "transposed", "empty"],
)
def test_which_tensors_it_accepts(x, accepted):
    assert on_all_ranks(1, lambda _, total: total.accepts(x)) == [accepted]


def test_a_group_sums_small_tensors_through_it_and_others_by_the_library(monkeypatch):
    node = Node(1)
    memory = Memory(node, 0)
    group = TensorParallelGroup(0, 2)
    group.symmetric = SymmetricSum(GROUP, CPU, memory)
    by_library: list[int] = []
    monkeypatch.setattr(
        tensor_parallel_group.dist, "all_reduce", lambda x, group: by_library.append(x.nbytes), raising=True
    )
    small, large, half = torch.ones(4, 8), torch.ones(CAPACITY // 4 + 4), torch.ones(8, dtype=torch.float16)
    for x in (small, large, half):
        assert torch.equal(group.sum(x), x)
    assert memory.calls == [(small.nbytes, "17")]
    assert by_library == [large.nbytes, half.nbytes]


def test_a_failure_is_a_lost_neighbour(monkeypatch):
    memory = Memory(Node(1), 0)
    group = TensorParallelGroup(0, 2)
    group.others = [1]
    group.symmetric = SymmetricSum(GROUP, CPU, memory)

    def fail(addend: torch.Tensor, name: str) -> torch.Tensor:
        raise RuntimeError("CUDASymmetricMemory: no peer")

    monkeypatch.setattr(memory, "all_reduce", fail)
    with pytest.raises(NeighbourError, match="lost another rank: CUDASymmetricMemory") as caught:
        group.sum(torch.ones(8))
    assert caught.value.lost_ranks == [1]


def test_the_gpus_of_a_worker_have_successive_numbers():
    memory = Memory(Node(1), 0)
    assert unreadable_gpu(torch.device("cuda", 1), 1, 3, memory) is None
    assert unreadable_gpu(torch.device("cuda", 2), 0, 2, memory) == 3


def test_torch_has_the_functions():
    """Nothing here runs them: they need GPUs."""
    operator = torch.ops.symm_mem.one_shot_all_reduce.default
    assert [(each.name, str(each.type)) for each in operator._schema.arguments] == [
        ("input", "Tensor"),
        ("reduce_op", "str"),
        ("group_name", "str"),
    ]
    assert set(inspect.signature(_symmetric_memory.empty).parameters) == {"size", "dtype", "device"}
    assert list(inspect.signature(_symmetric_memory.rendezvous).parameters) == ["tensor", "group"]
    assert isinstance(inspect.getattr_static(dist.ProcessGroup, "group_name"), property)
