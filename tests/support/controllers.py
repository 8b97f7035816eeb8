"""Controllers over gRPC in the test's process, whose ranks follow a script (scripted_rank.py)."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc.aio
from orca_protos import engine_pb2 as pb
from orca_protos.engine_pb2_grpc import WorkerStub, add_WorkerServicer_to_server
from orca_protos.wire import SERVER_OPTIONS
from orca_worker.controller import Controller

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "tests" / "support" / "scripted_rank.py"
MODEL = ROOT / "examples" / "demo-model"


@contextlib.asynccontextmanager
async def workers(folder: Path, *scripts: dict[str, object]) -> AsyncIterator[tuple[list[Controller], list[Any]]]:
    """Yield a controller and a stub for each script, on Unix sockets `folder`/INDEX.sock."""
    controllers, servers, channels = [], [], []
    for index, script in enumerate(scripts):
        controllers.append(Controller((sys.executable, str(SCRIPT), json.dumps(script))))
        servers.append(grpc.aio.server(options=SERVER_OPTIONS))
        add_WorkerServicer_to_server(controllers[-1], servers[-1])
        servers[-1].add_insecure_port(f"unix:{folder}/{index}.sock")
        await servers[-1].start()
        channels.append(grpc.aio.insecure_channel(f"unix:{folder}/{index}.sock"))
    try:
        async with asyncio.timeout(200):
            yield controllers, [WorkerStub(channel) for channel in channels]
    finally:
        for channel in channels:
            await channel.close()
        for controller, server in zip(controllers, servers, strict=True):
            await controller.close()
            await server.stop(0)


def load_request(partition: int = 0, partitions: int = 1, ranks: int = 1) -> pb.LoadRequest:
    return pb.LoadRequest(
        model_path=str(MODEL),
        partition=partition,
        pipeline_parallel_size=partitions,
        tensor_parallel_size=ranks,
        device="cpu",
        workers_on_host=1,
    )


async def load(stub: Any, request: pb.LoadRequest) -> pb.ModelFacts:
    return [progress async for progress in stub.Load(request)][-1].facts


async def form(folder: Path, stubs: list[Any], ranks: int, epoch: int) -> None:
    """Load and form a pipeline."""
    for partition, stub in enumerate(stubs):
        await load(stub, load_request(partition, len(stubs), ranks))
    for stub in stubs:
        await stub.Prepare(pb.PrepareRequest(epoch=epoch))
    for partition, stub in enumerate(stubs):
        next_hop = f"unix:{folder}/{partition + 1}.sock" if partition + 1 < len(stubs) else ""
        await stub.Form(pb.FormRequest(epoch=epoch, next_hop=next_hop, world_size=len(stubs) * ranks))
