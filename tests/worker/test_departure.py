"""A worker that gets a signal to end announces it to its master, and computes until the master closes the streams."""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc
import grpc.aio
import httpx
import pytest
from orca_contract import routes
from orca_protos import engine_pb2 as pb
from orca_protos.wire import EPOCH_KEY
from orca_worker.controller import Controller
from orca_worker.probes import create_probes
from support.controllers import form, load, load_request, workers


@pytest.mark.parametrize(
    ("partitions", "leaver"), [(3, 1), (1, 0), *(pytest.param(3, end, marks=pytest.mark.long) for end in (0, 2))]
)
def test_the_announcement_reaches_the_master_and_iterations_go_on(tmp_path: Path, partitions: int, leaver: int):
    async def run() -> None:
        async with workers(tmp_path, *[{}] * (partitions - 1), {"computes": True}) as (controllers, stubs):
            await form(tmp_path, stubs, 1, epoch=4)
            acks = stubs[0].Run(metadata=((EPOCH_KEY, "4"),))
            results = stubs[-1].Results(pb.ResultsRequest(epoch=4))
            await acks.write(pb.Iteration(epoch=4, sequence=1))
            assert (await results.read()).sequence == 1
            leaving = asyncio.create_task(controllers[leaver].leave(1000))
            while not (ack := await acks.read()).HasField("departure"):
                pass
            assert (ack.epoch, ack.departure.partition) == (4, leaver)
            for sequence in (2, 3):
                await acks.write(pb.Iteration(epoch=4, sequence=sequence))
                assert (await results.read()).sequence == sequence
            assert not leaving.done()
            assert not controllers[leaver].stopped.is_set()
            acks.cancel()
            results.cancel()
            await asyncio.wait_for(leaving, 60)
            assert [controller.stopped.is_set() for controller in controllers] == [
                index == leaver for index in range(partitions)
            ]
            assert all(controller.num_streams == 0 for controller in controllers)

    asyncio.run(run())


def test_a_worker_says_which_master_it_serves_until_the_streams_end(tmp_path: Path):
    """The later partition, whose caller is a controller, says nothing: its stream is open before the master's."""

    async def run() -> None:
        async with workers(tmp_path, {}, {"computes": True}) as (_, stubs):
            for partition, stub in enumerate(stubs):
                await load(stub, load_request(partition, 2))
                await stub.Prepare(pb.PrepareRequest(epoch=4, master="a"))
            await stubs[0].Form(pb.FormRequest(epoch=4, next_hop=f"unix:{tmp_path}/1.sock", world_size=2))
            await stubs[1].Form(pb.FormRequest(epoch=4, world_size=2))

            async def served() -> list[str]:
                return [(await stub.Describe(pb.DescribeRequest())).serving_master for stub in stubs]

            assert await served() == ["", ""]
            acks = stubs[0].Run(metadata=((EPOCH_KEY, "4"),))
            await acks.write(pb.Iteration(epoch=4, sequence=1))
            await acks.read()
            assert await served() == ["a", ""]
            acks.cancel()
            async with asyncio.timeout(60):
                while await served() != ["", ""]:
                    await asyncio.sleep(0.01)

    asyncio.run(run())


def test_a_worker_that_leaves_during_a_formation_announces_it_afterwards(tmp_path: Path):
    """Partition 0 has opened its stream to partition 1, which is not formed yet when it gets the signal."""

    async def run() -> None:
        async with workers(tmp_path, {}, {}) as (controllers, stubs):
            for partition, stub in enumerate(stubs):
                await load(stub, load_request(partition, 2))
                await stub.Prepare(pb.PrepareRequest(epoch=4))
            await stubs[0].Form(pb.FormRequest(epoch=4, next_hop=f"unix:{tmp_path}/1.sock", world_size=2))
            while not controllers[1].num_streams:
                await asyncio.sleep(0.01)
            leaving = asyncio.create_task(controllers[1].leave(1000))
            await asyncio.sleep(0)
            await stubs[1].Form(pb.FormRequest(epoch=4, world_size=2))
            acks = stubs[0].Run(metadata=((EPOCH_KEY, "4"),))
            assert (await acks.read()).departure.partition == 1
            acks.cancel()
            await asyncio.wait_for(leaving, 60)

    asyncio.run(run())


def test_a_leaving_worker_takes_no_new_master_and_ends_at_the_latest_after_its_timeout(tmp_path: Path):
    async def run() -> None:
        async with workers(tmp_path, {}) as (controllers, (stub,)):
            await form(tmp_path, [stub], 1, epoch=4)
            acks = stub.Run(metadata=((EPOCH_KEY, "4"),))
            await acks.write(pb.Iteration(epoch=4, sequence=1))
            while not controllers[0].num_streams:
                await asyncio.sleep(0.01)
            await asyncio.wait_for(controllers[0].leave(0.1), 60)
            assert controllers[0].stopped.is_set()
            assert controllers[0].num_streams == 1, "the master has not closed its stream"
            with pytest.raises(grpc.aio.AioRpcError, match="the worker is shutting down"):
                await stub.Describe(pb.DescribeRequest())

    asyncio.run(run())


def test_a_leaving_worker_is_not_ready(tmp_path: Path):
    async def run() -> None:
        async with workers(tmp_path, {}) as ((controller,), (stub,)):
            await load(stub, load_request())
            async with httpx.AsyncClient(transport=httpx.ASGITransport(create_probes(controller))) as client:

                async def status(path: str) -> int:
                    return (await client.get(f"http://worker{path}")).status_code

                assert [await status(path) for path in (routes.READY, routes.LIVE)] == [200, 200]
                await controller.leave(0)
                assert [await status(path) for path in (routes.READY, routes.LIVE)] == [503, 200]

    assert not Controller().leaving
    asyncio.run(run())
