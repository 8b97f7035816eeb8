"""`DataPlane`: the process group of one epoch, and the transfer of activations between partitions, over NCCL or gloo.

gloo reaches a GPU through memory of the host (staging.py).

Only activations use this path. Sends are asynchronous, and their buffers are kept until they complete, at most one per
in-flight iteration: a stage never waits for a slow peer (a blocking gloo send waits for the receive even at 3 KB).
"""

from __future__ import annotations

import datetime
import re
import threading
from collections import deque

import torch
import torch.distributed as dist
from orca_contract.model_choices import AllReduce
from orca_protos.deadlines import CONNECT_SECONDS
from torch.distributed import Store  # type: ignore[attr-defined]

from orca_worker.device_copies import HostCopies
from orca_worker.errors import ModelError, NeighbourError, RankError
from orca_worker.group_abort import GroupAbort
from orca_worker.shared_sum import share_memory
from orca_worker.staging import Staging
from orca_worker.symmetric_sum import SymmetricSum, TorchSymmetricMemory, unreadable_gpu
from orca_worker.tensor_parallel_group import TensorParallelGroup


class DataPlane:
    """The process group of one epoch, whose ranks compute on `device`. Every rank must create it at the same time.

    `timeout`: seconds to wait for another rank. Raises NeighbourError if the ranks do not connect.
    """

    def __init__(
        self,
        backend: str,
        store: Store,
        rank: int,
        world_size: int,
        group: TensorParallelGroup,
        timeout: float,
        max_in_flight: int,
        device: torch.device,
    ) -> None:
        self._store: Store | None = store
        """Torch keeps only the C++ half of a store, and NCCL and symmetric memory use it after this call."""
        self._device = device
        self._rank = rank
        self._world_size = world_size
        self._max_in_flight = max_in_flight
        self._sends: deque[tuple[dist.Work, torch.Tensor, int]] = deque()
        self._receives: deque[tuple[dist.Work, torch.Tensor, int]] = deque()
        self.posts_ahead = backend == "gloo"
        """Post receives early? gloo transfers nothing before the receive is posted; NCCL would occupy the device."""
        self._timeout = datetime.timedelta(seconds=timeout)
        self._group = group
        self._closing = threading.Lock()
        self._closed = False
        self._abort = GroupAbort(())
        """Of NCCL's groups, whose waits only an abort ends."""
        self._shares_memory = False
        """True if memory of GPUs is shared with the group, or was about to be."""
        self._staging: Staging | None = None
        if backend == "gloo" and device.type != "cpu":
            copies = HostCopies(device)
            self._staging = Staging(device, copies, _start_send, self._lost, self._timeout, max(1, max_in_flight))
        # gloo's wait for the connection of a rank that has died cannot be interrupted. NCCL connects later.
        connect = datetime.timedelta(seconds=min(timeout, CONNECT_SECONDS)) if backend == "gloo" else self._timeout
        try:
            dist.init_process_group(backend, store=store, rank=rank, world_size=world_size, timeout=connect)
            group.process_group = self._new_group(world_size, connect)
            first = rank - group.rank
            group.others = [other for other in range(first, first + group.size) if other != rank]
            if backend == "nccl":
                groups = (dist.group.WORLD, group.process_group)
                self._abort = GroupAbort([group for group in groups if group is not None])
            if group.size > 1 and backend == "gloo":
                group.shared = share_memory(group.process_group, group.rank, group.size, timeout)
                dist.distributed_c10d._set_pg_timeout(self._timeout, group.process_group)
        except (RuntimeError, dist.DistError) as error:
            self.close()
            raise NeighbourError(f"rank {rank} could not join the process group: {error}") from error

    def _new_group(self, world_size: int, timeout: datetime.timedelta) -> dist.ProcessGroup | None:
        """Create the group of every partition, as torch requires of each rank, and return this rank's group."""
        own_group, size = None, self._group.size
        for first in range(0, world_size if size > 1 else 0, size):
            group = dist.new_group(list(range(first, first + size)), timeout=timeout)
            if first <= self._rank < first + size:
                own_group = group
        return own_group

    def connect(self, all_reduce: AllReduce) -> None:
        """Create NCCL's communicators, which would come into being in the first iteration; gloo has connected already.

        Raises NeighbourError after the group's timeout: it blocks the host, unlike the waits of iterations. Raises
        ModelError if the GPUs lack the `all_reduce`.
        """
        if self.posts_ahead:
            return
        token, size = torch.zeros(1, device=self._device), self._group.size
        before, after = self._rank - size, self._rank + size
        others = [other for other in (before, after) if 0 <= other < self._world_size]
        try:
            if before in others:  # in the order of an iteration: the first partition begins
                _start(dist.irecv(token, before)).wait(self._timeout)
            if after in others:
                _start(dist.isend(token, after)).wait(self._timeout)
            if size > 1:
                _start(dist.all_reduce(token, group=self._group.process_group, async_op=True)).wait(self._timeout)
        except RuntimeError as error:
            message = f"rank {self._rank} could not connect over NCCL: {error}"
            raise NeighbourError(message, [*others, *self._group.others]) from error
        if all_reduce == "symmetric" and size > 1:
            self._share_memory_of_gpus()

    def _share_memory_of_gpus(self) -> None:
        """Let the group sum through symmetric memory; raise ModelError on every rank if one GPU cannot read another.

        Ranks wait for each other in the rendezvous, at most its timeout; torch's exchange of the memory after it has
        no bound of its own.
        """
        group, memory = self._group, TorchSymmetricMemory()
        unreadable = unreadable_gpu(self._device, group.rank, group.size, memory)
        verdict = torch.tensor([0.0 if unreadable is None else 1.0], device=self._device)
        assert group.process_group is not None
        try:
            _start(dist.all_reduce(verdict, group=group.process_group, async_op=True)).wait(self._timeout)
            if verdict.item():
                here = "" if unreadable is None else f" (GPU {self._device.index} that of GPU {unreadable})"
                raise ModelError(f"--all-reduce symmetric: GPUs cannot read each other's memory{here}, use library")
            self._shares_memory = True
            group.symmetric = SymmetricSum(group.process_group, self._device, memory)
        except RuntimeError as error:
            message = f"rank {self._rank} could not share memory with the other GPUs of its worker: {error}"
            raise NeighbourError(message, group.others) from error

    def send(self, hidden: torch.Tensor, distance: int) -> None:
        """Start sending `hidden` to the rank `distance` after this one.

        Raises NeighbourError if this or an earlier send has lost its receiver; over staging also RuntimeError if the
        device has failed.
        """
        receiver = self._rank + distance
        if self._staging is not None:
            self._staging.send(hidden, receiver)
            return
        while len(self._sends) >= self._max_in_flight:
            self._wait(*self._sends.popleft())
        try:
            work = _start_send(hidden, receiver)
        except RuntimeError as error:
            raise self._lost(receiver, error) from error
        self._sends.append((work, hidden, receiver))

    def post(self, shape: tuple[int, ...], dtype: torch.dtype, distance: int) -> None:
        """Start receiving activations of `shape` from the rank `distance` before this one; from any thread.

        Does nothing after `close`.
        """
        sender, staging = self._rank - distance, self._staging
        if staging is not None:
            hidden = staging.buffer(shape, dtype)
        else:
            hidden = torch.empty(shape, dtype=dtype, device=self._device)
        with self._closing:
            if self._closed:
                return
            try:
                work = _start(dist.irecv(hidden, sender))
            except RuntimeError as error:
                raise self._lost(sender, error) from error
            self._receives.append((work, hidden, sender))

    def receive(self) -> torch.Tensor:
        """Wait for the receive that was posted first, and return its activations.

        Raises NeighbourError if its sender is lost.
        """
        work, hidden, sender = self._receives.popleft()
        self._wait(work, hidden, sender)
        return hidden if self._staging is None else self._staging.to_device(hidden)

    def abandon(self) -> None:
        """End this process's waits for lost ranks, from any thread; the group cannot be used afterwards.

        A wait over gloo ends by itself, with the sockets of the lost rank. A kernel of NCCL waits for ever, and so does
        a thread that waits for the device. Does not wait for the end of the abort, for which `close` waits.
        """
        if (shared := self._group.shared) is not None:
            shared.leave()
        if (staging := self._staging) is not None:
            staging.leave()
        self._abort.begin()

    def close(self) -> None:
        """Leave the group and abandon pending sends and receives. Ranks that wait for this rank get an error.

        Drop CUDA graphs with collectives of this group before: NCCL waits for their end. Raises RankError, which ends
        the process, if the group has symmetric memory: a kernel may wait there for a lost rank, and torch counts the
        exchanges of a process, so that a process that stays and a new one would never meet again.
        """
        self.abandon()  # torch would wait for NCCL's kernels, which may wait for a lost rank
        if self._shares_memory:
            raise RankError(f"rank {self._rank} ends with its group, whose symmetric memory no later group can replace")
        self._abort.wait()
        with self._closing:
            self._closed = True
            self._sends.clear()
            if self._staging is not None:
                self._staging.close()
                self._staging = None  # a cycle, through `_lost`
            self._receives.clear()
            self._group.shared = self._group.symmetric = self._group.process_group = None
            if dist.is_initialized():
                dist.destroy_process_group()
            self._store = None
            # A failed start has counted a group, and the count is a part of the next group's keys in the rendezvous.
            dist.distributed_c10d._world.group_count = 0

    def _wait(self, work: dist.Work, _buffer: torch.Tensor, other: int) -> None:
        try:
            if self.posts_ahead:
                work.wait(self._timeout)
            else:
                work.wait()  # orders streams; with a timeout NCCL would block the host until the data has arrived
        except RuntimeError as error:
            raise self._lost(other, error) from error

    def _lost(self, other: int, error: RuntimeError) -> NeighbourError:
        # Without gloo's prefix, its source file, and its suffix, general advice.
        summary = re.sub(r"^\[[^]]*\] *|\. This .*", "", str(error).splitlines()[0])
        return NeighbourError(f"rank {self._rank} lost rank {other} of an adjacent partition: {summary}", [other])


def _start_send(hidden: torch.Tensor, receiver: int) -> dist.Work:
    return _start(dist.isend(hidden, receiver))


def _start(work: dist.Work | None) -> dist.Work:
    """Return a started transfer; torch's type allows None, for ranks outside of the group."""
    assert work is not None
    return work
