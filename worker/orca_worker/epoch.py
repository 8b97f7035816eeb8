"""`Epoch`: a controller's state for one set of communicators, from `Form` until a fault or the next epoch.

Iterations are forwarded to the next controller; Acks and results are queued for their streams.

A fault of kind CAUSE ends the epoch and all its streams. A CONSEQUENCE is sent on the streams, which stay open, because
the cause may be detected later, here or in another partition. The master decides how long to wait for the cause.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any

import grpc
import grpc.aio
from orca_protos import engine_pb2 as pb
from orca_protos import faults

from orca_worker.errors import EpochError, FaultError


class Epoch:
    """One epoch of the controller of `partition`. `next_hop`: the Run stream to the next controller, None on the last.

    `alone`: the only partition. It acknowledges no iterations, because its results do.
    """

    def __init__(self, number: int, partition: int, next_hop: Any | None, alone: bool) -> None:
        self.number = number
        self.last_sequence = 0
        self.acks: asyncio.Queue[pb.Ack] = asyncio.Queue()
        self._partition = partition
        self._results: asyncio.Queue[pb.IterationResult | None] = asyncio.Queue()
        self._streams: set[asyncio.Task[Any]] = set()
        self._next_hop = next_hop
        self._alone = alone
        self._timings: list[pb.StageTiming] = []
        self._over: asyncio.Future[pb.Fault] = asyncio.get_running_loop().create_future()
        self._relay = asyncio.create_task(self._relay_acks()) if next_hop is not None else None

    @property
    def serves_master(self) -> bool:
        """True while the master's stream of iterations is open here. A later partition's caller is a controller."""
        return self._partition == 0 and bool(self._streams) and not self._over.done()

    def accept(self, iteration: pb.Iteration) -> None:
        """Check epoch and sequence number; raise EpochError for another epoch, FaultError on a gap."""
        if iteration.epoch != self.number:
            raise EpochError(f"iteration of epoch {iteration.epoch} in epoch {self.number}")
        if iteration.sequence != self.last_sequence + 1:
            message = f"iteration {iteration.sequence} arrived, {self.last_sequence + 1} is expected"
            raise FaultError(self._own_fault(message, pb.FAULT_KIND_CAUSE))
        self.last_sequence = iteration.sequence

    def accept_masks(self, message: pb.Iteration) -> None:
        """Check that masks belong to an iteration of this epoch; raise EpochError or FaultError."""
        if message.epoch != self.number:
            raise EpochError(f"masks of epoch {message.epoch} in epoch {self.number}")
        if message.sequence > self.last_sequence:
            error = f"masks of iteration {message.sequence} arrived, the last one is {self.last_sequence}"
            raise FaultError(self._own_fault(error, pb.FAULT_KIND_CAUSE))

    async def forward(self, iteration: pb.Iteration) -> None:
        """Forward an iteration or masks; the last partition queues an iteration's Ack: all partitions have it now."""
        if self._next_hop is None:
            if not self._alone and not iteration.HasField("masks"):
                self.acks.put_nowait(self._ack(iteration.sequence))
            return
        try:
            await self._next_hop.write(iteration)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            # `_relay_acks` gets the reason from the same stream.
            await asyncio.shield(self._over)

    def reply(self, reply: pb.RankReply) -> None:
        """Queue rank 0's result of an iteration, or keep its timing for the next Ack."""
        if reply.HasField("result"):
            self._results.put_nowait(reply.result)
        else:
            self._timings.append(reply.timing)

    def report(self, fault: pb.Fault) -> None:
        """Handle a fault of this epoch, of a rank or a later partition: a cause ends the epoch."""
        if fault.kind != pb.FAULT_KIND_CONSEQUENCE:
            self.end(fault)
        elif not self._over.done():
            self.acks.put_nowait(pb.Ack(epoch=self.number, fault=fault))
            self._results.put_nowait(pb.IterationResult(epoch=self.number, fault=fault))

    def announce_departure(self, departure: pb.Departure) -> None:
        """Announce in the stream of Acks that a worker is about to end; the epoch goes on.

        Not in the results: a master that does not know departures would take the message for a result.
        """
        if not self._over.done():
            self.acks.put_nowait(pb.Ack(epoch=self.number, departure=departure))

    def leave(self, reason: str) -> None:
        """End the epoch because of another command; `reason` is the cause."""
        fault = self._own_fault(reason, pb.FAULT_KIND_CAUSE)
        fault.outside = True
        self.end(fault)

    def lose_caller(self) -> None:
        """End the epoch because the caller's stream of iterations ended."""
        caller = f"the controller of partition {self._partition - 1}" if self._partition else "the master"
        fault = self._own_fault(f"{caller} ended its stream of iterations", pb.FAULT_KIND_CONSEQUENCE)
        fault.partition = max(self._partition - 1, 0)  # the origin, as far as this controller knows
        self.end(fault)

    def end(self, fault: pb.Fault) -> None:
        """End the epoch with `fault`; later faults are ignored."""
        if not self._over.done():
            self._over.set_result(fault)
            self._results.put_nowait(None)
            for task in self._streams:
                task.cancel()
        if self._relay is not None and self._relay is not asyncio.current_task():
            self._relay.cancel()

    async def result(self) -> pb.IterationResult:
        """Wait for the next result; raise FaultError once the epoch is over."""
        result = None if self._over.done() else await self._results.get()
        if result is None:
            self._results.put_nowait(None)  # for other waiting calls
            raise FaultError(self._over.result())
        return result

    @contextlib.contextmanager
    def until_over(self) -> Iterator[None]:
        """Interrupt this task's `with` block with FaultError as soon as the epoch is over."""
        task = asyncio.current_task()
        assert task is not None
        self._streams.add(task)
        try:
            if self._over.done():
                raise FaultError(self._over.result())
            yield
        except asyncio.CancelledError:
            if self._over.done():
                task.uncancel()
                raise FaultError(self._over.result()) from None
            raise
        finally:
            self._streams.discard(task)

    async def _relay_acks(self) -> None:
        assert self._next_hop is not None
        gone = f"lost the controller of partition {self._partition + 1}"
        # For a stream that ends without a fault: the origin, as far as this controller knows.
        fault = pb.Fault(
            message=f"{gone}: it closed its stream",
            kind=pb.FAULT_KIND_CONSEQUENCE,
            epoch=self.number,
            partition=self._partition + 1,
        )
        try:
            async for ack in self._next_hop:
                if ack.HasField("fault"):
                    self.report(ack.fault)
                    continue
                if ack.HasField("departure"):
                    self.announce_departure(ack.departure)
                    continue
                self._timings.extend(ack.timing)
                self.acks.put_nowait(self._ack(ack.sequence))
        except grpc.aio.AioRpcError as error:
            fault.message = f"{gone}: {error.details() or error.code().name}"
            fault = faults.from_error(error) or fault
        self.end(fault)  # later partitions cannot report a cause any more

    def _own_fault(self, message: str, kind: pb.FaultKind) -> pb.Fault:
        return pb.Fault(message=message, kind=kind, epoch=self.number, partition=self._partition)

    def _ack(self, sequence: int) -> pb.Ack:
        timings, self._timings = self._timings, []
        return pb.Ack(epoch=self.number, sequence=sequence, timing=timings)
