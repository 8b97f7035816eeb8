"""Which iterations an epoch accepts, and its faults.

The cause ends the epoch; a consequence is passed on while the cause may still come, in any order.
"""

from __future__ import annotations

import asyncio
import itertools

import grpc
import grpc.aio
import pytest
from orca_protos import engine_pb2 as pb
from orca_protos import faults
from orca_worker.epoch import Epoch
from orca_worker.errors import EpochError, FaultError

CAUSE = pb.Fault(message="killed", kind=pb.FAULT_KIND_CAUSE, epoch=7, partition=1, tensor_rank=0)
OWN = pb.Fault(message="rank 1 is gone", kind=pb.FAULT_KIND_CONSEQUENCE, epoch=7, partition=0, tensor_rank=1)


class NextHop:
    """A Run stream to a next controller: Acks from a queue, then an end with `fault`, or without a word."""

    def __init__(self) -> None:
        self.acks: asyncio.Queue[pb.Ack | pb.Fault | None] = asyncio.Queue()

    def __aiter__(self) -> NextHop:
        return self

    async def __anext__(self) -> pb.Ack:
        message = await self.acks.get()
        if isinstance(message, pb.Ack):
            return message
        code, metadata = grpc.StatusCode.UNAVAILABLE, grpc.aio.Metadata()
        if message is not None:
            code, metadata = grpc.StatusCode.ABORTED, grpc.aio.Metadata(*faults.to_metadata(message))
        raise grpc.aio.AioRpcError(code, grpc.aio.Metadata(), metadata, "Socket closed")


async def end_of(epoch: Epoch) -> pb.Fault:
    """Return the fault that ends the results."""
    try:
        while True:
            await asyncio.wait_for(epoch.result(), 60)
    except FaultError as error:
        return error.fault


@pytest.mark.parametrize("events", list(itertools.permutations(["own consequence", "relayed consequence", "cause"])))
@pytest.mark.parametrize("cause_is_own", [True, False])
def test_the_cause_ends_the_epoch_in_any_order(events, cause_is_own):
    """A neighbour may notice a lost rank before that rank's own controller does."""

    async def run() -> None:
        hop = NextHop()
        epoch = Epoch(7, 0, hop, alone=False)
        relayed = pb.Fault(message="rank 2 lost", kind=pb.FAULT_KIND_CONSEQUENCE, epoch=7, partition=1, tensor_rank=1)
        for event in events:
            if event == "own consequence":
                epoch.report(OWN)
            elif event == "relayed consequence":
                hop.acks.put_nowait(pb.Ack(epoch=7, fault=relayed))
            elif cause_is_own:
                epoch.report(CAUSE)
            else:
                hop.acks.put_nowait(CAUSE)
            for _ in range(5):  # let the relay take its turn
                await asyncio.sleep(0)
        assert await end_of(epoch) == CAUSE, "origin, kind and epoch of the cause, unchanged"
        passed_on = [epoch.acks.get_nowait().fault for _ in range(epoch.acks.qsize())]
        consequences = {"own consequence": OWN, "relayed consequence": relayed}
        assert passed_on == [consequences[event] for event in events[: events.index("cause")]]

    asyncio.run(run())


def test_a_next_controller_that_is_gone_is_named():
    """It says nothing any more: the epoch ends, with that controller as the origin."""

    async def run() -> None:
        hop = NextHop()
        epoch = Epoch(7, 0, hop, alone=False)
        epoch.report(OWN)
        hop.acks.put_nowait(None)
        fault = await end_of(epoch)
        assert (fault.kind, fault.partition, fault.epoch) == (pb.FAULT_KIND_CONSEQUENCE, 1, 7)
        assert not fault.HasField("tensor_rank")
        assert fault.message == "lost the controller of partition 1: Socket closed"

    asyncio.run(run())


def test_a_consequence_alone_leaves_the_streams_open():
    async def run() -> None:
        epoch = Epoch(7, 0, None, alone=False)
        epoch.report(OWN)
        assert (await epoch.result()).fault == OWN
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(epoch.result(), 0.05)
        epoch.leave("epoch 8 is being formed")
        fault = await end_of(epoch)
        assert (fault.kind, fault.message) == (pb.FAULT_KIND_CAUSE, "epoch 8 is being formed")

    asyncio.run(run())


def test_a_departure_is_announced_in_acks_only_and_ends_nothing():
    """Of this or a later partition. An older reader, which ignores the field, reads an Ack that says nothing."""

    async def run() -> None:
        hop = NextHop()
        epoch = Epoch(7, 0, hop, alone=False)
        epoch.announce_departure(pb.Departure(partition=0))
        hop.acks.put_nowait(pb.Ack(epoch=7, departure=pb.Departure(partition=2)))
        hop.acks.put_nowait(pb.Ack(epoch=7, sequence=1))
        acks = [await asyncio.wait_for(epoch.acks.get(), 60) for _ in range(3)]
        assert [ack.departure.partition for ack in acks[:2]] == [0, 2]
        assert acks[2] == pb.Ack(epoch=7, sequence=1)
        for ack in acks[:2]:
            ack.ClearField("departure")
            assert ack == pb.Ack(epoch=7)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(epoch.result(), 0.05)
        epoch.leave("epoch 8 is being formed")
        epoch.announce_departure(pb.Departure(partition=0))
        assert epoch.acks.empty(), "nobody reads an epoch that is over"

    asyncio.run(run())


def test_a_caller_that_is_gone_ends_the_results():
    async def run() -> None:
        epoch = Epoch(7, 2, None, alone=False)
        epoch.lose_caller()
        fault = await end_of(epoch)
        assert (fault.kind, fault.partition) == (pb.FAULT_KIND_CONSEQUENCE, 1)

    asyncio.run(run())


def test_only_iterations_of_this_epoch_are_accepted_without_a_gap():
    async def run() -> None:
        epoch = Epoch(7, 0, None, alone=True)
        epoch.accept(pb.Iteration(epoch=7, sequence=1))
        for number in (6, 8):
            with pytest.raises(EpochError, match=f"iteration of epoch {number} in epoch 7"):
                epoch.accept(pb.Iteration(epoch=number, sequence=2))
        for sequence in (1, 3):
            with pytest.raises(FaultError, match=f"iteration {sequence} arrived, 2 is expected"):
                epoch.accept(pb.Iteration(epoch=7, sequence=sequence))
        epoch.accept(pb.Iteration(epoch=7, sequence=2))
        assert epoch.last_sequence == 2

    asyncio.run(run())


def test_each_timing_travels_in_one_ack():
    async def run() -> None:
        epoch = Epoch(7, 1, None, alone=False)
        for sequence in (1, 2):
            epoch.reply(pb.RankReply(timing=pb.StageTiming(sequence=sequence)))
            await epoch.forward(pb.Iteration(epoch=7, sequence=sequence))
        acks = [epoch.acks.get_nowait() for _ in range(2)]
        assert [[timing.sequence for timing in ack.timing] for ack in acks] == [[1], [2]]

    asyncio.run(run())
