"""`Pipeline`: one pipeline's workers, from formation through iterations to its end.

Order of events: Describe all (which also waits for them) → epoch = highest seen + 1 → Load all →
Prepare all → Form all → Warmup all → Allocate the smallest number of blocks → open `Results` on the
last partition and `Run` on the first → iterations with rising sequence numbers.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections.abc import Callable
from typing import Any

import grpc
import grpc.aio
from orca_protos import engine_pb2 as pb
from orca_protos.wire import PENDING_TOKEN

from orca_master.engine_config import EngineConfig
from orca_master.errors import ConfigurationError
from orca_master.kv_ledger import BLOCK_SIZE, blocks_for
from orca_master.request import Request
from orca_master.scheduler import Batch
from orca_master.topology import PipelineSpec, Topology
from orca_master.workers import WorkerConnection, WorkerLostError

logger = logging.getLogger(__name__)

LAST_WORDS_SECONDS = 2.0


class Phase(enum.Enum):
    """Where a pipeline stands, in the order of events."""

    CONNECTING = "Connecting"
    LOADING = "Loading"
    FORMING = "Forming"
    SERVING = "Serving"
    LOST = "Recovering"


def build_iteration(epoch: int, sequence: int, batch: Batch) -> pb.Iteration:
    """Returns the wire form of a dispatched batch (protos/engine.proto, Iteration)."""
    iteration = pb.Iteration(epoch=epoch, sequence=sequence)
    for scheduled in batch.requests:
        iteration.row.append(scheduled.row)
        iteration.num_tokens.append(scheduled.num_tokens)
        iteration.context_length.append(scheduled.context_length)
        iteration.token.extend(
            scheduled.request.tokens(scheduled.context_length, scheduled.num_tokens) or (PENDING_TOKEN,)
        )
        iteration.num_new_blocks.append(len(scheduled.new_blocks))
        iteration.new_block.extend(scheduled.new_blocks)
        iteration.sample.append(scheduled.samples)
        if scheduled.admitted:
            request = scheduled.request
            iteration.admission.add(row=scheduled.row, sampling=_sampling(request), prompt_length=len(request.prompt))
    return iteration


def _sampling(request: Request) -> pb.Sampling:
    sampling = request.sampling
    return pb.Sampling(
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        seed=sampling.seed,
        choice=sampling.choice,
        top_k=sampling.top_k,
        min_p=sampling.min_p,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        repetition_penalty=sampling.repetition_penalty,
        logit_bias=dict(sampling.logit_bias),
        min_tokens=sampling.min_tokens,
        banned_token=request.stop_token_ids if sampling.min_tokens else (),
        logprobs=sampling.logprobs,
    )


class Pipeline:
    """One pipeline. `facts` and `num_blocks` are set once `form` has returned.

    `phase` and `num_loaded` (workers that hold their weights) may be read at any time.
    """

    def __init__(self, spec: PipelineSpec, topology: Topology, config: EngineConfig) -> None:
        self.id = spec.id
        self.facts = pb.ModelFacts()
        self.num_blocks = 0
        self.phase = Phase.CONNECTING
        self.num_loaded = 0
        self.epoch = 0
        self._spec = spec
        self._topology = topology
        self._config = config
        self._sequence = 0
        self._connections: list[WorkerConnection] = []
        self._run: Any = None
        self._outgoing: asyncio.Queue[pb.Iteration] = asyncio.Queue()
        self._parts: list[asyncio.Task[None]] = []

    async def form(self) -> None:
        """Brings the pipeline up; raises ConfigurationError or WorkerLostError."""
        topology, config = self._topology, self._config
        self._connections = [WorkerConnection(address) for address in self._spec.workers]
        workers = self._connections
        described = await _all(worker.describe(config.connect_timeout) for worker in workers)
        self.epoch = max(self.epoch, *(description.highest_epoch for description in described)) + 1
        neighbours = [address for pipeline in topology.pipelines for address in pipeline.workers]
        self.phase = Phase.LOADING
        facts = await _all(
            self._load(
                worker,
                pb.LoadRequest(
                    model_path=topology.model.path,
                    partition=partition,
                    pipeline_parallel_size=topology.pipeline_parallel_size,
                    tensor_parallel_size=topology.tensor_parallel_size,
                    dtype=topology.model.dtype,
                    device="cuda" if topology.communication.backend == "nccl" else "cpu",
                    communication_backend=topology.communication.backend,
                    socket_interface=topology.communication.socket_interface,
                    environment=topology.communication.env,
                    max_model_len=topology.model.max_model_len or 0,
                    workers_on_host=sum(_host(address) == _host(worker.address) for address in neighbours),
                    first_device=_place_on_host(worker.address, neighbours) * topology.tensor_parallel_size,
                    enforce_eager=config.enforce_eager,
                ),
            )
            for partition, worker in enumerate(workers)
        )
        self.facts = facts[0]
        self.phase = Phase.FORMING
        prepared = await _all(
            worker.prepare(pb.PrepareRequest(epoch=self.epoch, host_store=partition == 0))
            for partition, worker in enumerate(workers)
        )
        await _all(
            worker.form(
                pb.FormRequest(
                    epoch=self.epoch,
                    next_hop=[*self._spec.workers, ""][partition + 1],
                    first_rank=partition * topology.tensor_parallel_size,
                    world_size=len(workers) * topology.tensor_parallel_size,
                    store_address=prepared[0].store_address,
                    group_timeout_ms=int(config.stall_timeout * 1000),
                    max_in_flight=len(workers),
                )
            )
            for partition, worker in enumerate(workers)
        )
        await self._allocate()
        self._results = workers[-1].results(self.epoch)
        self._run = workers[0].run(self.epoch)
        self.phase = Phase.SERVING
        logger.info(
            "pipeline %s serves: epoch %d, %d partitions, %d K/V slots",
            self.id,
            self.epoch,
            len(workers),
            self.num_blocks * BLOCK_SIZE,
        )

    async def _load(self, worker: WorkerConnection, request: pb.LoadRequest) -> pb.ModelFacts:
        facts = await worker.load(request)
        self.num_loaded += 1
        return facts

    async def _allocate(self) -> None:
        """Sizes the block pools: what was asked for, or what fits but no more than can be used."""
        config, max_model_len = self._config, self.facts.max_model_len
        warmup = pb.WarmupRequest(
            max_tokens=min(config.token_budget or max_model_len, config.max_batch_size * max_model_len),
            memory_utilization=config.memory_utilization,
        )
        warmed_up = await _all(worker.warmup(warmup, config.stall_timeout) for worker in self._connections)
        scarcest = min(warmed_up, key=lambda reply: reply.num_blocks)
        if config.kv_slots is not None:
            self.num_blocks = config.kv_slots // BLOCK_SIZE
        else:
            usable = config.max_batch_size * len(self._connections) * blocks_for(max_model_len)
            self.num_blocks = min(scarcest.num_blocks, usable)
            logger.info("K/V blocks: min(%s; %d that requests can use)", scarcest.formula, usable)
        if not 0 < self.num_blocks <= scarcest.num_blocks:
            raise ConfigurationError(
                f"--kv-slots: {self.num_blocks} blocks of {BLOCK_SIZE} slots do not fit: {scarcest.formula}"
            )
        await _all(worker.allocate(pb.AllocateRequest(num_blocks=self.num_blocks)) for worker in self._connections)

    def send(self, batch: Batch) -> int:
        """Queues one iteration for partition 0 and returns its sequence number. Never blocks."""
        self._sequence += 1
        self._outgoing.put_nowait(build_iteration(self.epoch, self._sequence, batch))
        return self._sequence

    async def serve(
        self, on_result: Callable[[pb.IterationResult], None], on_timing: Callable[[pb.StageTiming], None]
    ) -> None:
        """Moves messages until a worker is lost, which it raises as WorkerLostError."""
        self._parts = [
            asyncio.create_task(part)
            for part in (self._write(), self._read_acks(on_timing), self._read_results(on_result, on_timing))
        ]
        done, _ = await asyncio.wait(self._parts, return_when=asyncio.FIRST_COMPLETED)
        for part in done:
            part.result()

    async def last_words(self) -> str:
        """Returns what all broken streams say, within a bound.

        A dead worker breaks several, and the one that names the cause may not be the first.
        """
        writer, *readers = self._parts
        ended, _ = await asyncio.wait(readers, timeout=LAST_WORDS_SECONDS)
        for part in {writer, *readers} - ended:
            part.cancel()
        said = [str(part.exception()) for part in readers if part in ended]
        return "; ".join(dict.fromkeys(said))

    async def shutdown(self, reason: str) -> None:
        """Ends the workers and the channels."""
        await asyncio.gather(*(worker.shutdown(reason) for worker in self._connections))
        await self.close()

    async def close(self) -> None:
        """Closes the channels, the workers live on."""
        for part in self._parts:
            part.cancel()
        await asyncio.gather(*self._parts, return_exceptions=True)
        connections, self._connections = self._connections, []
        await asyncio.gather(*(worker.close() for worker in connections))

    async def _write(self) -> None:
        while True:
            iteration = await self._outgoing.get()
            try:
                await self._run.write(iteration)
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
                await asyncio.Event().wait()  # the same stream's reader learns the status

    async def _read_acks(self, on_timing: Callable[[pb.StageTiming], None]) -> None:
        async for ack in _messages(self._run, self._connections[0]):
            for timing in ack.timing:
                on_timing(timing)

    async def _read_results(
        self, on_result: Callable[[pb.IterationResult], None], on_timing: Callable[[pb.StageTiming], None]
    ) -> None:
        async for result in _messages(self._results, self._connections[-1]):
            if result.epoch != self.epoch:
                continue
            on_timing(result.timing)
            on_result(result)


def _host(address: str) -> str:
    """The host of a worker's address; Unix sockets are all on this one."""
    return "" if address.startswith("unix:") else address.rpartition(":")[0]


def _place_on_host(address: str, addresses: list[str]) -> int:
    """How many workers of the same host come before this one."""
    return sum(_host(other) == _host(address) for other in addresses[: addresses.index(address)])


async def _messages(stream: Any, worker: WorkerConnection) -> Any:
    """Yields the messages of a kept-open stream; raises WorkerLostError when it ends."""
    try:
        async for message in stream:
            yield message
    except grpc.aio.AioRpcError as error:
        raise worker.translate(error) from error
    raise WorkerLostError(f"worker {worker.address} closed its stream")


async def _all(calls: Any) -> list[Any]:
    """Awaits calls side by side; raises the first error after the others were cancelled."""
    tasks = [asyncio.ensure_future(call) for call in calls]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
