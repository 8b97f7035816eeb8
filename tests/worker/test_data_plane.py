"""`DataPlane.abandon` with a group whose waits only an abort ends. NCCL itself needs GPUs: its part is played here."""

from __future__ import annotations

import datetime
import threading
import weakref
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from orca_worker import data_plane
from orca_worker.data_plane import DataPlane
from orca_worker.errors import ModelError, NeighbourError, RankError
from orca_worker.tensor_parallel_group import TensorParallelGroup

SECONDS = 60
CPU, GPU = torch.device("cpu"), torch.device("meta")


class Group:
    """A process group. `aborted` ends the waits of its works; the abort itself ends when `graphs_gone` is set."""

    def __init__(self) -> None:
        self.aborted = threading.Event()
        self.graphs_gone = threading.Event()
        self.graphs_gone.set()

    def abort(self) -> None:
        self.aborted.set()
        assert self.graphs_gone.wait(SECONDS)


class Work:
    complete = False

    def __init__(self, group: Group) -> None:
        self.group = group
        self.waits = threading.Event()
        self.arguments: tuple[object, ...] = ()

    def wait(self, *arguments: object) -> None:
        self.arguments = arguments
        self.waits.set()
        if self.complete:
            return
        assert self.group.aborted.wait(SECONDS)
        raise RuntimeError("NCCL communicator was aborted on rank 0.")


class Torch:
    """What `torch.distributed` does for two ranks of one tensor-parallel group on each of two partitions."""

    DistError = RuntimeError
    sums = 0.0
    """What the other rank adds to a sum."""

    def __init__(self) -> None:
        self.world, self.own, self.other = Group(), Group(), Group()
        self.received: list[Work] = []
        """Of sums and sends, too."""
        self.calls: list[tuple[str, int]] = []
        self.destroyed = 0
        self.rank = 0
        self.group = SimpleNamespace(WORLD=self.world)
        world = SimpleNamespace(group_count=0)
        self.distributed_c10d = SimpleNamespace(_world=world)

    def init_process_group(self, *_: object, rank: int, **__: object) -> None:
        self.rank = rank

    def new_group(self, ranks: list[int], timeout: object) -> Group:
        return self.own if self.rank in ranks else self.other

    def irecv(self, _hidden: torch.Tensor, sender: int) -> Work:
        self.calls.append(("receive", sender))
        self.received.append(Work(self.world))
        return self.received[-1]

    def isend(self, _hidden: torch.Tensor, receiver: int) -> Work:
        self.calls.append(("send", receiver))
        self.received.append(Work(self.world))
        return self.received[-1]

    def all_reduce(self, _token: torch.Tensor, group: Group, async_op: bool) -> Work:
        assert async_op
        assert group is self.own
        self.calls.append(("sum", 0))
        _token += self.sums
        self.received.append(Work(group))
        return self.received[-1]

    def is_initialized(self) -> bool:
        return not self.destroyed

    def destroy_process_group(self) -> None:
        self.destroyed += 1


def plane(
    monkeypatch: pytest.MonkeyPatch,
    distributed: Torch,
    backend: str,
    rank: int = 0,
    device: torch.device = CPU,
) -> DataPlane:
    monkeypatch.setattr(data_plane, "dist", distributed)
    monkeypatch.setattr(data_plane, "share_memory", lambda *_: None)
    distributed.distributed_c10d._set_pg_timeout = lambda *_: None
    return DataPlane(backend, cast(Any, None), rank, 4, TensorParallelGroup(0, 2), SECONDS, 2, device)


def test_another_thread_ends_a_wait_that_would_not_end(monkeypatch):
    """It goes on meanwhile; the main thread drops its graphs, for which NCCL waits, and leaves the group."""
    distributed = Torch()
    left = plane(monkeypatch, distributed, "nccl")
    distributed.own.graphs_gone.clear()
    left.post((1, 4), torch.float32, 2)

    def leave() -> None:
        assert distributed.received[0].waits.wait(SECONDS)
        left.abandon()

    reader = threading.Thread(target=leave)
    reader.start()
    with pytest.raises(NeighbourError, match="lost rank -2 of an adjacent partition: NCCL communicator was aborted"):
        left.receive()
    reader.join(SECONDS)
    assert not reader.is_alive()
    assert distributed.own.aborted.wait(SECONDS)
    assert not distributed.other.aborted.is_set(), "a group of other ranks"
    assert not distributed.destroyed
    distributed.own.graphs_gone.set()
    left.close()
    assert distributed.destroyed == 1


def test_a_group_is_aborted_before_it_is_left(monkeypatch):
    """Torch would wait for NCCL's kernels, of which one may wait for a lost rank."""
    distributed = Torch()
    plane(monkeypatch, distributed, "nccl").close()
    assert distributed.world.aborted.is_set()
    assert distributed.own.aborted.is_set()
    assert distributed.destroyed == 1


def test_groups_of_gloo_are_not_aborted(monkeypatch):
    distributed = Torch()
    plane(monkeypatch, distributed, "gloo").abandon()
    assert not distributed.world.aborted.is_set()
    assert not distributed.own.aborted.is_set()


@pytest.mark.parametrize(
    ("backend", "arguments"), [("nccl", ()), ("gloo", (datetime.timedelta(seconds=SECONDS),))], ids=["nccl", "gloo"]
)
def test_only_gloo_gets_a_timeout(backend, arguments, monkeypatch):
    """With a timeout NCCL's `wait` blocks the host until the data has arrived, and the next results are late."""
    distributed = Torch()
    left = plane(monkeypatch, distributed, backend)
    left.post((1, 4), torch.float32, 2)
    distributed.world.aborted.set()
    with pytest.raises(NeighbourError):
        left.receive()
    assert distributed.received[0].arguments == arguments


@pytest.mark.parametrize(
    ("rank", "calls"), [(0, [("send", 2), ("sum", 0)]), (2, [("receive", 0), ("sum", 0)])], ids=["first", "last"]
)
def test_communicators_come_into_being_with_the_group_within_its_timeout(rank, calls, monkeypatch):
    """Not in the first iteration, with NCCL's own timeout."""
    distributed = Torch()
    joined = plane(monkeypatch, distributed, "nccl", rank)
    monkeypatch.setattr(Work, "complete", True)
    joined.connect("library")
    assert distributed.calls == calls
    assert [work.arguments for work in distributed.received] == [(datetime.timedelta(seconds=SECONDS),)] * 2


def test_a_rank_that_does_not_connect_is_a_lost_neighbour(monkeypatch):
    distributed = Torch()
    joined = plane(monkeypatch, distributed, "nccl")
    distributed.world.aborted.set()
    with pytest.raises(NeighbourError, match="rank 0 could not connect over NCCL: NCCL communicator was") as caught:
        joined.connect("library")
    assert set(caught.value.lost_ranks) == {1, 2}


def test_gloo_has_connected_already(monkeypatch):
    distributed = Torch()
    plane(monkeypatch, distributed, "gloo").connect("library")
    assert distributed.calls == []


def test_gloo_reaches_a_gpu_through_memory_of_the_host(monkeypatch):
    """The device "meta" plays the GPU."""
    distributed, threads = Torch(), []
    joined = plane(monkeypatch, distributed, "gloo", 2, GPU)
    joined.post((3, 4), torch.float32, 2)
    assert joined._receives[0][1].device.type == "cpu"
    monkeypatch.setattr(Work, "complete", True)
    received = joined.receive()
    assert (received.device, received.shape) == (GPU, (3, 4))

    def isend(hidden: torch.Tensor, receiver: int) -> Work:
        threads.append(threading.current_thread().name)
        return Torch.isend(distributed, hidden, receiver)

    monkeypatch.setattr(distributed, "isend", isend)
    for _ in range(4):
        joined.send(received, 2)  # the last two wait for the end of the first two
    assert threads[:2] == ["sends"] * 2
    assert set(distributed.calls) == {("receive", 0), ("send", 4)}
    joined.close()
    assert distributed.destroyed == 1


def test_a_lost_receiver_is_a_lost_neighbour_of_a_gpu_over_gloo(monkeypatch):
    distributed = Torch()
    joined = plane(monkeypatch, distributed, "gloo", device=GPU)
    distributed.world.aborted.set()  # every wait fails
    for _ in range(2):
        joined.send(torch.zeros(1), 2)
    with pytest.raises(NeighbourError, match="rank 0 lost rank 2 of an adjacent partition") as caught:
        joined.send(torch.zeros(1), 2)
    assert caught.value.lost_ranks == [2]
    joined.close()


def test_leaving_a_group_ends_the_sends_of_a_gpu(monkeypatch):
    distributed = Torch()
    joined = plane(monkeypatch, distributed, "gloo", device=GPU)
    joined.abandon()
    with pytest.raises(NeighbourError, match="the epoch is over"):
        joined.send(torch.zeros(1), 2)
    assert distributed.calls == []
    joined.close()


GPU_0 = torch.device("cpu", 0)
"""Stands for a rank's GPU, whose device has a number."""


class Memory:
    """Symmetric memory that exists if all ranks come."""

    lost = False
    readable = True

    def empty(self, num_bytes: int, device: torch.device) -> torch.Tensor:
        return torch.empty(num_bytes, dtype=torch.uint8, device=device)

    def rendezvous(self, buffer: torch.Tensor, group: object) -> None:
        if self.lost:
            raise RuntimeError("the key was not set within 300 s")

    def can_read(self, device: torch.device, other: int) -> bool:
        return self.readable


def connected(monkeypatch: pytest.MonkeyPatch, all_reduce: str) -> DataPlane:
    monkeypatch.setattr(data_plane, "TorchSymmetricMemory", Memory)
    monkeypatch.setattr(Group, "group_name", "1", raising=False)
    monkeypatch.setattr(Work, "complete", True)
    joined = plane(monkeypatch, Torch(), "nccl", device=GPU_0)
    joined.connect(cast(Any, all_reduce))
    return joined


def test_gpus_share_memory_with_the_group_if_the_all_reduce_needs_it(monkeypatch):
    plain = connected(monkeypatch, "library")
    assert plain._group.symmetric is None
    plain.close()
    assert connected(monkeypatch, "symmetric")._group.symmetric is not None


def test_a_rank_that_does_not_share_its_memory_is_a_lost_neighbour(monkeypatch):
    monkeypatch.setattr(Memory, "lost", True)
    with pytest.raises(NeighbourError, match="rank 0 could not share memory with the other GPUs") as caught:
        connected(monkeypatch, "symmetric")
    assert caught.value.lost_ranks == [1]


def test_gpus_that_cannot_read_each_other_are_refused_on_every_rank(monkeypatch):
    """The ranks tell each other before any of them waits in torch's exchange of memory."""
    monkeypatch.setattr(Memory, "readable", False)
    with pytest.raises(ModelError, match=r"^--all-reduce symmetric: GPUs cannot .* memory \(GPU 0 that of GPU 1\)"):
        connected(monkeypatch, "symmetric")
    monkeypatch.setattr(Memory, "readable", True)
    monkeypatch.setattr(Torch, "sums", 1.0)
    with pytest.raises(ModelError, match=r"^--all-reduce symmetric: GPUs cannot .* memory, use library$"):
        connected(monkeypatch, "symmetric")


def test_a_process_ends_with_a_group_whose_memory_it_shares(monkeypatch):
    """Also if the exchange failed: torch has counted it, and a new process counts from the beginning."""
    joined = connected(monkeypatch, "symmetric")
    with pytest.raises(RankError, match="rank 0 ends with its group"):
        joined.close()
    monkeypatch.setattr(Memory, "lost", True)
    failed = plane(monkeypatch, Torch(), "nccl", device=GPU_0)
    with pytest.raises(NeighbourError):
        failed.connect("symmetric")
    with pytest.raises(RankError, match="rank 0 ends with its group"):
        failed.close()


def test_the_store_lives_as_long_as_the_group(monkeypatch):
    """NCCL asks it later than `init_process_group`, by torch's half in C++, which does not keep Python's."""
    monkeypatch.setattr(data_plane, "dist", Torch())
    monkeypatch.setattr(data_plane, "share_memory", lambda *_: None)

    class AnyStore:
        pass

    store = AnyStore()
    kept = weakref.ref(store)
    joined = DataPlane("nccl", cast(Any, store), 0, 1, TensorParallelGroup(0, 1), SECONDS, 2, CPU)
    del store
    assert kept() is not None
    joined.close()
    assert kept() is None
