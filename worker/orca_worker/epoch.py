"""`Epoch`: what a controller holds for one set of communicators, from `Form` until it is over.

Iterations pass through to the next controller; Acks and results wait here for the streams that carry
them. The first fault ends the epoch and with it every stream that belongs to it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any

import grpc
import grpc.aio
from orca_protos import engine_pb2 as pb

from orca_worker.errors import EpochError, RankError

OWN_FAULT_SECONDS = 0.5
"""How long a neighbour's complaint waits for a fault of this worker's own, which may be its cause."""


class Epoch:
    """One epoch of one controller. `next_hop` is the Run stream to the next controller, None on the last.

    A partition that is `alone`, first and last, owes no Acks: its results say as much.
    """

    def __init__(self, number: int, next_hop: Any | None, alone: bool) -> None:
        self.number = number
        self.last_sequence = 0
        self.acks: asyncio.Queue[pb.Ack] = asyncio.Queue()
        self._results: asyncio.Queue[pb.IterationResult | None] = asyncio.Queue()
        self._streams: set[asyncio.Task[Any]] = set()
        self._next_hop = next_hop
        self._alone = alone
        self._timings: list[pb.StageTiming] = []
        self._own_fault_expected = False
        self._over: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._relay = asyncio.create_task(self._relay_acks()) if next_hop is not None else None

    def accept(self, iteration: pb.Iteration) -> None:
        """Checks epoch and sequence number; raises EpochError for another epoch, RankError on a gap."""
        if iteration.epoch != self.number:
            raise EpochError(f"iteration of epoch {iteration.epoch} in epoch {self.number}")
        if iteration.sequence != self.last_sequence + 1:
            raise RankError(f"iteration {iteration.sequence} came where {self.last_sequence + 1} was due")
        self.last_sequence = iteration.sequence

    async def forward(self, iteration: pb.Iteration) -> None:
        """Passes an iteration on; on the last partition it is queued everywhere now, so its Ack is due."""
        if self._next_hop is None:
            if not self._alone:
                self.acks.put_nowait(self._ack(iteration.sequence))
            return
        try:
            await self._next_hop.write(iteration)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            # The relay of Acks learns from the same stream why it broke.
            await asyncio.shield(self._over)

    def reply(self, reply: pb.RankReply) -> None:
        """Takes what rank 0 says about an iteration: its result, or its timing for a later Ack."""
        if reply.HasField("result"):
            self._results.put_nowait(reply.result)
        else:
            self._timings.append(reply.timing)

    def expect_own_fault(self) -> None:
        """A rank of this worker is gone and `end` will say why: what neighbours say about it can wait."""
        self._own_fault_expected = True

    def end(self, reason: str) -> None:
        """Ends the epoch; the first reason stands."""
        if not self._over.done():
            self._over.set_result(reason)
            self._results.put_nowait(None)
            for task in self._streams:
                task.cancel()
        if self._relay is not None:
            self._relay.cancel()

    async def result(self) -> pb.IterationResult:
        """Waits for the next result; raises RankError with the reason once the epoch is over."""
        result = None if self._over.done() else await self._results.get()
        if result is None:
            self._results.put_nowait(None)  # whoever else waits
            raise RankError(self._over.result())
        return result

    @contextlib.contextmanager
    def until_over(self) -> Iterator[None]:
        """A block of this task that is left with RankError and the reason as soon as the epoch is over."""
        task = asyncio.current_task()
        assert task is not None
        self._streams.add(task)
        try:
            if self._over.done():
                raise RankError(self._over.result())
            yield
        except asyncio.CancelledError:
            if self._over.done():
                task.uncancel()
                raise RankError(self._over.result()) from None
            raise
        finally:
            self._streams.discard(task)

    async def _relay_acks(self) -> None:
        assert self._next_hop is not None
        reason = "the next partition's controller closed its stream"
        try:
            async for ack in self._next_hop:
                self._timings.extend(ack.timing)
                self.acks.put_nowait(self._ack(ack.sequence))
        except grpc.aio.AioRpcError as error:
            reason = f"next partition: {error.details() or error.code().name}"
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(self._over), OWN_FAULT_SECONDS)
        if not self._own_fault_expected:
            self.end(reason)

    def _ack(self, sequence: int) -> pb.Ack:
        timings, self._timings = self._timings, []
        return pb.Ack(epoch=self.number, sequence=sequence, timing=timings)
