"""`DataPlane.abandon` with a group whose waits only an abort ends. NCCL itself needs GPUs: its part is played here."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from orca_worker import data_plane
from orca_worker.data_plane import DataPlane
from orca_worker.errors import NeighbourError
from orca_worker.tensor_parallel_group import TensorParallelGroup

SECONDS = 60


class Group:
    """A process group and its backend. Aborts take effect together; `aborted` ends the waits of its works."""

    def __init__(self, aborts: list[Group]) -> None:
        self.aborted = threading.Event()
        self._aborts = aborts

    def _get_backend(self, device: torch.device) -> Group:
        assert device.type == "cuda"
        return self

    def _group_start(self) -> None:
        self._aborts.clear()

    def abort(self) -> None:
        self._aborts.append(self)

    def _group_end(self) -> None:
        for group in self._aborts:
            group.aborted.set()


class Work:
    def __init__(self, group: Group) -> None:
        self.group = group
        self.waits = threading.Event()

    def wait(self, _timeout: object) -> None:
        self.waits.set()
        assert self.group.aborted.wait(SECONDS)
        raise RuntimeError("NCCL communicator was aborted on rank 0.")


class Torch:
    """What `torch.distributed` does for two ranks of one tensor-parallel group on each of two partitions."""

    DistError = RuntimeError

    def __init__(self) -> None:
        aborts: list[Group] = []
        self.world, self.own, self.other = Group(aborts), Group(aborts), Group(aborts)
        self.received: list[Work] = []
        self.destroyed = 0
        self.group = SimpleNamespace(WORLD=self.world)
        world = SimpleNamespace(group_count=0)
        self.distributed_c10d = SimpleNamespace(_world=world)

    def init_process_group(self, *_: object, **__: object) -> None:
        pass

    def new_group(self, ranks: list[int], timeout: object) -> Group:
        return self.own if 0 in ranks else self.other

    def irecv(self, _hidden: torch.Tensor, _sender: int) -> Work:
        self.received.append(Work(self.world))
        return self.received[-1]

    def is_initialized(self) -> bool:
        return not self.destroyed

    def destroy_process_group(self) -> None:
        self.destroyed += 1


def plane(monkeypatch: pytest.MonkeyPatch, distributed: Torch, backend: str) -> DataPlane:
    monkeypatch.setattr(data_plane, "dist", distributed)
    monkeypatch.setattr(data_plane, "share_memory", lambda *_: None)
    distributed.distributed_c10d._set_pg_timeout = lambda *_: None
    return DataPlane(backend, cast(Any, None), 0, 4, TensorParallelGroup(0, 2), SECONDS, 2)


def test_another_thread_ends_a_wait_that_would_not_end(monkeypatch):
    distributed = Torch()
    left = plane(monkeypatch, distributed, "nccl")
    left.post((1, 4), torch.float32, torch.device("cpu"), 2)

    def leave() -> None:
        assert distributed.received[0].waits.wait(SECONDS)
        left.abandon()

    reader = threading.Thread(target=leave)
    reader.start()
    with pytest.raises(NeighbourError, match="lost rank -2 of an adjacent partition: NCCL communicator was aborted"):
        left.receive()
    reader.join(SECONDS)
    assert distributed.own.aborted.is_set()
    assert not distributed.other.aborted.is_set(), "a group of other ranks"
    left.close()
    assert distributed.destroyed == 1


def test_groups_that_the_main_thread_has_left_meanwhile_are_a_line_in_the_log(monkeypatch, caplog):
    distributed = Torch()
    left = plane(monkeypatch, distributed, "nccl")

    def gone(_: object) -> Group:
        raise RuntimeError("the group was destroyed")

    distributed.world._get_backend = gone
    left.abandon()
    assert "the groups of rank 0 could not be aborted: the group was destroyed" in caplog.text


def test_groups_of_gloo_are_not_aborted(monkeypatch):
    distributed = Torch()
    plane(monkeypatch, distributed, "gloo").abandon()
    assert not distributed.world.aborted.is_set()
    assert not distributed.own.aborted.is_set()
