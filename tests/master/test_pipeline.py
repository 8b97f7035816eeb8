"""`Pipeline` over workers that are not there: what it makes of their faults and of a lack of memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace

import grpc
import grpc.aio
import pytest
from orca_contract.message import VERSION
from orca_contract.state import PipelinePhase
from orca_contract.topology import ModelSpec, PipelineSpec, Topology
from orca_master.engine.config import EngineConfig
from orca_master.engine.faults import WorkerLostError, closest
from orca_master.engine.pipeline import Pipeline
from orca_master.engine.worker_connection import WorkerConnection
from orca_master.errors import ConfigurationError
from orca_protos import engine_pb2 as pb
from orca_protos import faults
from orca_protos.wire import HIGHEST_EPOCH, WIRE_VERSION

WORKERS = ["a:1", "b:1", "c:1"]
KILLED = pb.Fault(message="killed", kind=pb.FAULT_KIND_CAUSE, epoch=5, partition=1, tensor_rank=0)
LOST = pb.Fault(message="lost", kind=pb.FAULT_KIND_CONSEQUENCE, epoch=5, partition=2, tensor_rank=0)
OLD = pb.Fault(message="old", kind=pb.FAULT_KIND_CAUSE, epoch=4, partition=0, tensor_rank=0)


def pipeline(config: EngineConfig | None = None) -> Pipeline:
    topology = Topology(
        model=ModelSpec(path="m", served_name="m"),
        pipeline_parallel_size=3,
        pipelines=[PipelineSpec(id="p", workers=WORKERS)],
    )
    made = Pipeline(topology.pipelines[0], topology, config or EngineConfig(kv_slots=None))
    made._connections = [WorkerConnection(address) for address in WORKERS]
    made.epoch = 5
    return made


class Receiver:
    """Records departures, ignores the rest."""

    def __init__(self) -> None:
        self.departed: list[str] = []

    def on_result(self, result: pb.IterationResult) -> None:
        pass

    def on_timing(self, timing: pb.StageTiming) -> None:
        pass

    def on_departure(self, worker: str) -> None:
        self.departed.append(worker)


async def stream(*messages: object, end: pb.Fault | None = None) -> AsyncIterator[object]:
    """Yield a hot stream of `messages`, which ends with a fault, or not at all."""
    for message in messages:
        yield message
    if end is None:
        await asyncio.Event().wait()
    metadata = grpc.aio.Metadata(*faults.to_metadata(end))
    raise grpc.aio.AioRpcError(grpc.StatusCode.ABORTED, grpc.aio.Metadata(), metadata, "cut")


def ack(fault: pb.Fault) -> pb.Ack:
    return pb.Ack(epoch=5, fault=fault)


def result(fault: pb.Fault) -> pb.IterationResult:
    return pb.IterationResult(epoch=5, fault=fault)


@pytest.mark.parametrize(
    ("acks", "results"),
    [
        (lambda: stream(ack(LOST), end=KILLED), lambda: stream(result(LOST))),
        (lambda: stream(ack(LOST)), lambda: stream(result(LOST), end=KILLED)),
        (lambda: stream(ack(OLD), ack(KILLED)), lambda: stream(result(LOST))),
        (lambda: stream(ack(OLD)), lambda: stream(result(OLD), end=KILLED)),
        (lambda: stream(ack(OLD), end=KILLED), lambda: stream(end=LOST)),
    ],
)
def test_the_worker_of_the_cause_is_named_whichever_stream_brings_it(acks, results):
    """Not the worker at whose stream it arrives; and faults of an older epoch are ignored."""

    async def run() -> None:
        made = pipeline()
        made._run, made._results = acks(), results()
        await asyncio.wait_for(made.serve(Receiver()), 60)
        lost = closest(await asyncio.wait_for(made.reported_until_conclusive(), 60))
        assert (str(lost), lost.worker) == ("worker b:1: killed", "b:1")
        await made.close()

    asyncio.run(run())


def test_departures_of_this_epoch_are_reported_and_end_nothing():
    """A partition that the pipeline does not have is taken for its last one."""

    async def run() -> None:
        made, receiver = pipeline(), Receiver()
        departures = [
            pb.Ack(epoch=epoch, departure=pb.Departure(partition=partition))
            for epoch, partition in ((5, 1), (4, 0), (5, 9))
        ]
        made._run, made._results = stream(*departures), stream()
        serving = asyncio.create_task(made.serve(receiver))
        async with asyncio.timeout(60):
            while len(receiver.departed) < 2:
                await asyncio.sleep(0)
        assert (receiver.departed, serving.done(), made.reported) == (["b:1", "c:1"], False, [])
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
        await made.close()

    asyncio.run(run())


def test_a_lack_of_memory_is_for_the_user_to_mend():
    """No block fits: the formula is in the error, and the option that changes it; nobody has given --kv-slots."""

    async def run() -> None:
        made = pipeline()
        for connection in made._connections:

            async def warmup(_: pb.WarmupRequest) -> pb.WarmedUp:
                return pb.WarmedUp(num_blocks=0, formula="(10 MiB free x 0.9 - 20 MiB buffers) = 0 blocks")

            connection.warmup = warmup
        made.facts = pb.ModelFacts(max_model_len=64)
        words = r"^--gpu-memory-utilization: 0 blocks of 16 slots do not fit: \(10 MiB free"
        with pytest.raises(ConfigurationError, match=words):
            await made._allocate(0)
        await made.close()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("kv_slots", "fitting", "num_blocks", "why"),
    [
        (64, 100, 4, "as --kv-slots says"),
        (None, 100, 32, "as 8 requests of 64 tokens can use"),
        (None, 20, 20, "as the memory holds"),
        (None, 32, 32, "as the memory holds"),
    ],
    ids=["by hand", "what can be used", "what fits", "both"],
)
def test_the_smallest_number_of_blocks_decides_and_is_explained(kv_slots, fitting, num_blocks, why):
    """Three workers of which the second has least memory."""

    async def run() -> None:
        made = pipeline(EngineConfig(kv_slots=kv_slots, max_batch_size=2))
        allocated = []
        for index, connection in enumerate(made._connections):
            blocks = fitting + 7 * (index != 1)

            async def warmup(_: pb.WarmupRequest, blocks: int = blocks) -> pb.WarmedUp:
                return pb.WarmedUp(num_blocks=blocks, formula=f"10 MiB = {blocks} blocks")

            async def allocate(request: pb.AllocateRequest) -> pb.Allocated:
                allocated.append(request.num_blocks)
                return pb.Allocated()

            connection.warmup, connection.allocate = warmup, allocate
        made.facts = pb.ModelFacts(max_model_len=64)
        await made._allocate(0)
        assert (made.num_blocks, allocated) == (num_blocks, [num_blocks] * 3)
        assert made.sizing == f"{why}; the memory holds 10 MiB = {fitting} blocks"
        await made.close()

    asyncio.run(run())


def test_a_worker_that_ignores_the_quantization_is_refused():
    """One of an older version, which would serve the unquantised weights."""

    async def load(request: pb.LoadRequest, on_progress: Callable[[int, int], None]) -> pb.ModelFacts:
        return pb.ModelFacts()

    async def run() -> None:
        worker = SimpleNamespace(address="a:1", load=load)
        await pipeline()._load(worker, lambda phase: None, pb.LoadRequest())
        with pytest.raises(ConfigurationError, match="worker a:1 is of an older version without --quantization int8"):
            await pipeline()._load(worker, lambda phase: None, pb.LoadRequest(quantization="int8"))
        with pytest.raises(ConfigurationError, match="worker a:1 is of an older version without --kv-cache-dtype int8"):
            await pipeline()._load(worker, lambda phase: None, pb.LoadRequest(kv_cache_dtype="int8"))
        with pytest.raises(
            ConfigurationError, match="worker a:1 is of an older version without --attention-backend to"
        ):
            await pipeline()._load(worker, lambda phase: None, pb.LoadRequest(attention_backend="torch"))

    asyncio.run(run())


def test_a_checkpoint_that_is_quantised_already():
    """Its worker names method and type; the option may name the same type."""

    async def load(request: pb.LoadRequest, on_progress: Callable[[int, int], None]) -> pb.ModelFacts:
        return pb.ModelFacts(quantization="gptq int4")

    async def run() -> None:
        worker = SimpleNamespace(address="a:1", load=load)
        for quantization in ("", "int4"):
            facts = await pipeline()._load(worker, lambda phase: None, pb.LoadRequest(quantization=quantization))
            assert facts.quantization == "gptq int4"

    asyncio.run(run())


def test_what_all_workers_have_read():
    """A worker that had the weights already, or is of an older version, reports nothing and is not counted."""

    async def run() -> None:
        made = pipeline()
        seen = []

        def worker(address: str, *readings: tuple[int, int]) -> SimpleNamespace:
            async def load(_: pb.LoadRequest, on_progress: Callable[[int, int], None]) -> pb.ModelFacts:
                for reading in readings:
                    on_progress(*reading)
                return pb.ModelFacts()

            return SimpleNamespace(address=address, load=load)

        def enter(phase: PipelinePhase) -> None:
            seen.append((phase, made.loaded_bytes, made.num_loaded))

        for one in (worker("a:1", (10, 100), (70, 100)), worker("b:1", (20, 50)), worker("c:1")):
            await made._load(one, enter, pb.LoadRequest())
        assert {phase for phase, *_ in seen} == {PipelinePhase.LOADING}
        assert list(dict.fromkeys(reading for _, reading, _ in seen)) == [
            (10, 100), (70, 100), (100, 100), (120, 150), (150, 150)
        ]  # fmt: skip
        assert seen[-1] == (PipelinePhase.LOADING, (150, 150), 3)
        await made.close()

    asyncio.run(run())


def test_a_worker_whose_epochs_are_used_up_is_ended():
    """Somebody has asked it for the last epoch: started anew, it has seen none. The others live on."""

    async def run() -> None:
        made = pipeline()
        ended: list[str] = []
        for connection in made._connections:

            async def shutdown(reason: str, address: str = connection.address) -> None:
                ended.append(address)

            connection.shutdown = shutdown
        described = [pb.Description(highest_epoch=epoch) for epoch in (7, HIGHEST_EPOCH, 0)]
        with pytest.raises(WorkerLostError, match=r"worker b:1 .* restart the worker") as lost:
            await made._end_exhausted(described)
        assert (ended, lost.value.worker) == (["b:1"], "b:1")
        await made._end_exhausted([pb.Description(highest_epoch=HIGHEST_EPOCH - 1)] * 3)
        assert ended == ["b:1"]
        await made.close()

    asyncio.run(run())


def test_workers_of_another_version_are_named(caplog):
    async def run() -> None:
        made = pipeline()
        described = [
            pb.Description(version="0.1", contract_version=version, wire_version=WIRE_VERSION)
            for version in (VERSION, 0, VERSION)
        ]
        made._compare_versions(described)
        described[2].wire_version = 0
        with pytest.raises(ConfigurationError, match=f"worker c:1 .* protocol 0, this master .* {WIRE_VERSION}"):
            made._compare_versions(described)
        await made.close()

    asyncio.run(run())
    line, _ = [record.getMessage() for record in caplog.records]
    assert line.startswith(f"worker b:1 has version 0.1 (contract 0), this master has contract {VERSION}")


@pytest.mark.parametrize(("seconds", "timeout_ms"), [(0.0, 0), (300.0, 1_200_000), (4_000_000.0, 16_000_000_000)])
def test_a_change_of_adapters_waits_for_an_iteration_per_partition(seconds, timeout_ms):
    async def run() -> None:
        made, asked = pipeline(), []
        for connection in made._connections:

            async def change(request: pb.ChangeAdaptersRequest) -> pb.AdaptersChanged:
                asked.append(request)
                return pb.AdaptersChanged(digest="d")

            connection.change_adapters = change
        assert await made.change_adapters([2], pb.RuntimeAdapter(number=3), seconds) == "d"
        assert [(request.timeout_ms, request.kept, request.loaded.number) for request in asked] == [
            (timeout_ms, [2], 3)
        ] * 3
        await made.close()

    asyncio.run(run())


def test_closing_a_pipeline_ends_a_change_of_its_adapters():
    """Whether the change is under way, which grpc.aio shows as a cancellation, or begins later."""

    async def run() -> None:
        made = pipeline()
        answers = [asyncio.get_running_loop().create_future() for _ in made._connections]
        for connection, answer in zip(made._connections, answers, strict=True):
            connection._stub = SimpleNamespace(ChangeAdapters=lambda _, timeout, answer=answer: answer)
        changing = asyncio.create_task(made.change_adapters([], None))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        for answer in answers:
            answer.cancel()
        await made.close()
        with pytest.raises(WorkerLostError, match="worker a:1: the connection was closed; worker b:1"):
            await changing
        with pytest.raises(WorkerLostError, match="the connections to pipeline p are closed"):
            await made.change_adapters([], None)

    asyncio.run(run())
