"""An answer that comes after its question was given up, from a real rank."""

from __future__ import annotations

import asyncio

import grpc.aio
import pytest
from orca_protos import engine_pb2 as pb
from orca_protos.engine_pb2_grpc import WorkerStub
from support.engines import worker_processes
from support.instrumented_worker import command

NAME = "gpt2-head64-tied"


@pytest.mark.long
def test_a_prepare_that_was_given_up_answers_nothing_else(checkpoint, tmp_path):
    """Its answer comes when the next epoch is being formed, and neither Prepare, Form nor Warmup takes it."""

    async def run(address: str) -> None:
        async with asyncio.timeout(200), grpc.aio.insecure_channel(address) as channel:
            stub = WorkerStub(channel)
            request = pb.LoadRequest(
                model_path=str(checkpoint(NAME)),
                pipeline_parallel_size=1,
                tensor_parallel_size=1,
                dtype="float32",
                device="cpu",
                communication_backend="gloo",
                workers_on_host=1,
            )
            async for _ in stub.Load(request, wait_for_ready=True):
                pass
            given_up = stub.Prepare(pb.PrepareRequest(epoch=1))
            while not (tmp_path / "preparing").exists():
                await asyncio.sleep(0.01)
            given_up.cancel()
            preparing = asyncio.ensure_future(stub.Prepare(pb.PrepareRequest(epoch=2)))
            while (await stub.Describe(pb.DescribeRequest())).highest_epoch < 2:
                await asyncio.sleep(0.01)
            (tmp_path / "release").touch()
            assert (await preparing).epoch == 2
            await stub.Form(pb.FormRequest(epoch=2, world_size=1, group_timeout_ms=60_000))
            warmed_up = await stub.Warmup(pb.WarmupRequest(max_tokens=64, memory_utilization=0.5), timeout=60)
            assert warmed_up.num_blocks > 0
            assert "blocks" in warmed_up.formula

    with worker_processes(1, {0: command("late_rank.py", str(tmp_path))}) as (addresses, _):
        asyncio.run(run(addresses[0]))
