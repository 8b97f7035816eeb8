"""`Pipeline`: forms a pipeline with its workers, sends iterations, and reads results.

Order of calls: Describe all workers (waits until they are up and free) → epoch = highest epoch + 1 → Load all →
Prepare all → Form all → Warmup all → Allocate the smallest number of blocks → open `Results` on the
last partition and `Run` on the first → iterations with increasing sequence numbers.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

import grpc
import grpc.aio
from orca_contract.kv_blocks import BLOCK_SIZE
from orca_contract.message import VERSION
from orca_contract.state import PipelinePhase
from orca_contract.topology import PipelineSpec, Topology
from orca_protos import engine_pb2 as pb
from orca_protos import faults
from orca_protos.wire import HIGHEST_EPOCH, WIRE_VERSION

from orca_master.engine.config import EngineConfig
from orca_master.engine.earlier_master import describe_free
from orca_master.engine.faults import Evidence, FaultCollector, WorkerLostError, all_workers, lost_worker
from orca_master.engine.iteration_message import build_iteration
from orca_master.engine.load_request import check_applied, load_requests
from orca_master.engine.same_weights import common_facts
from orca_master.engine.snapshot import LoadedBytes
from orca_master.engine.worker_connection import WorkerConnection
from orca_master.engine.workers import PipelineReceiver
from orca_master.errors import ConfigurationError
from orca_master.scheduling.batch import Batch
from orca_master.scheduling.kv_ledger import blocks_for

logger = logging.getLogger(__name__)


class Pipeline:
    """One formation of a pipeline. `form` sets `facts`, `num_blocks`, its reason `sizing`, and `warmup_seconds`.

    `num_loaded` is the number of workers that have loaded their weights, `loaded_bytes` the sum of their progress.
    """

    def __init__(self, spec: PipelineSpec, topology: Topology, config: EngineConfig) -> None:
        self.id = spec.id
        self.facts = pb.ModelFacts()
        self.num_blocks = 0
        self.sizing = ""
        self.warmup_seconds = 0.0
        self.num_loaded = 0
        self.loaded_bytes = LoadedBytes()
        self._loaded_by_worker: dict[str, LoadedBytes] = {}
        self.epoch = 0
        self._spec = spec
        self._topology = topology
        self._config = config
        self._sequence = 0
        self._connections: list[WorkerConnection] = []
        self._run: Any = None
        self._outgoing: asyncio.Queue[pb.Iteration] = asyncio.Queue()
        self._tasks: list[asyncio.Task[None]] = []
        self._faults = FaultCollector(topology.tensor_parallel_size)
        self._over = False

    async def form(self, enter: Callable[[PipelinePhase], None], previous_num_blocks: int = 0) -> None:
        """Form the pipeline; raise ConfigurationError or WorkerLostError.

        Calls `enter` when loading starts, at each progress of a worker, and when forming starts. `previous_num_blocks`:
        K/V blocks of the previous formation, 0 before the first.
        """
        topology, config = self._topology, self._config
        workers = self._connections = [WorkerConnection(address, config.tls) for address in self._spec.workers]
        described = await describe_free(workers, config)
        await self._end_exhausted(described)
        self._compare_versions(described)
        self.epoch = max(self.epoch, *(description.highest_epoch for description in described)) + 1
        enter(PipelinePhase.LOADING)
        facts = await all_workers(
            self._load(worker, enter, request)
            for worker, request in zip(workers, load_requests(self._spec, topology, config), strict=True)
        )
        self.facts = common_facts(self._spec.workers, facts)
        enter(PipelinePhase.FORMING)
        prepare = pb.PrepareRequest(epoch=self.epoch, master=config.master_id)
        await all_workers(worker.prepare(prepare) for worker in workers)
        await all_workers(
            worker.form(
                pb.FormRequest(
                    epoch=self.epoch,
                    next_hop=[*self._spec.workers, ""][partition + 1],
                    first_rank=partition * topology.tensor_parallel_size,
                    world_size=len(workers) * topology.tensor_parallel_size,
                    rendezvous_host=self._spec.workers[0] if partition else "",
                    group_timeout_ms=int(config.rank_timeout * 1000),
                    max_in_flight=len(workers) + 1,  # the policy, and so the scheduler's bound, may change
                )
            )
            for partition, worker in enumerate(workers)
        )
        await self._allocate(previous_num_blocks)
        self._results = workers[-1].results(self.epoch)
        self._run = workers[0].run(self.epoch)

    async def _end_exhausted(self, described: list[pb.Description]) -> None:
        """Shut down a worker at the highest epoch (a restart resets its epoch) and raise WorkerLostError."""
        for worker, description in zip(self._connections, described, strict=True):
            if description.highest_epoch >= HIGHEST_EPOCH:
                await worker.shutdown("no higher epoch exists")
                raise WorkerLostError(
                    f"worker {worker.address} reports epoch {description.highest_epoch}, which no master uses, and was "
                    "shut down: restart the worker, and allow only its master to connect to its port",
                    worker=worker.address,
                )

    def _compare_versions(self, described: list[pb.Description]) -> None:
        """Compare versions: log workers with another contract version than this master.

        Raises ConfigurationError for a worker with another protocol version of engine.proto.
        """
        for worker, description in zip(self._connections, described, strict=True):
            if description.wire_version != WIRE_VERSION:
                raise ConfigurationError(
                    f"worker {worker.address} has version {description.version} and protocol "
                    f"{description.wire_version}, this master has protocol {WIRE_VERSION}: deploy one version of both"
                )
            if description.contract_version != VERSION:
                logger.warning(
                    "worker %s has version %s (contract %d), this master has contract %d: deploy one version of both",
                    worker.address,
                    description.version,
                    description.contract_version,
                    VERSION,
                )

    async def _load(
        self, worker: WorkerConnection, enter: Callable[[PipelinePhase], None], request: pb.LoadRequest
    ) -> pb.ModelFacts:
        def on_progress(done: int, total: int) -> None:
            self._loaded_by_worker[worker.address] = LoadedBytes(done, total)
            self.loaded_bytes = LoadedBytes.sum(self._loaded_by_worker.values())
            enter(PipelinePhase.LOADING)

        facts = await worker.load(request, on_progress)
        check_applied(worker.address, request, facts)
        self.num_loaded += 1
        if (loaded := self._loaded_by_worker.get(worker.address)) is not None:
            on_progress(loaded.total, loaded.total)
        enter(PipelinePhase.LOADING)
        return facts

    async def _allocate(self, previous_num_blocks: int) -> None:
        """Size and allocate the block pools: --kv-slots, or as many usable blocks as fit into memory."""
        config, max_model_len = self._config, self.facts.max_model_len
        warmup = pb.WarmupRequest(
            epoch=self.epoch,
            max_tokens=min(config.token_budget or max_model_len, config.max_batch_size * max_model_len),
            memory_utilization=config.memory_utilization,
            timeout_ms=int(config.longest_seconds * 1000),
            previous_num_blocks=previous_num_blocks,
        )
        begun = time.monotonic()
        warmed_up = await all_workers(worker.warmup(warmup) for worker in self._connections)
        self.warmup_seconds = time.monotonic() - begun
        scarcest = min(warmed_up, key=lambda reply: reply.num_blocks)
        num_requests = config.max_batch_size * config.for_scheduler(self._topology).most_in_flight
        usable = num_requests * blocks_for(max_model_len)
        if config.kv_slots is not None:
            self.num_blocks, self.sizing = config.kv_slots // BLOCK_SIZE, "as --kv-slots says"
        elif usable < scarcest.num_blocks:
            self.num_blocks, self.sizing = usable, f"as {num_requests} requests of {max_model_len} tokens can use"
        else:
            self.num_blocks, self.sizing = scarcest.num_blocks, "as the memory holds"
        self.sizing += f"; the memory holds {scarcest.formula}"
        logger.debug("pipeline %s has %d K/V blocks, %s", self.id, self.num_blocks, self.sizing)
        if not 0 < self.num_blocks <= scarcest.num_blocks:
            name = "--gpu-memory-utilization" if config.kv_slots is None else "--kv-slots"
            text = f"{name}: {self.num_blocks} blocks of {BLOCK_SIZE} slots do not fit: {scarcest.formula}"
            raise ConfigurationError(text)
        await all_workers(
            worker.allocate(pb.AllocateRequest(epoch=self.epoch, num_blocks=self.num_blocks))
            for worker in self._connections
        )

    def send(self, batch: Batch) -> int:
        """Queue an iteration for partition 0 and return its sequence number. Never blocks."""
        sequence = self._sequence + 1
        self._outgoing.put_nowait(build_iteration(self.epoch, sequence, batch))
        self._sequence = sequence
        return sequence

    def send_masks(self, sequence: int, masks: pb.TokenMasks) -> None:
        """Queue the masks of an iteration that was sent before. Never blocks."""
        self._outgoing.put_nowait(pb.Iteration(epoch=self.epoch, sequence=sequence, masks=masks))

    async def change_adapters(
        self, kept: Sequence[int], loaded: pb.RuntimeAdapter | None, iteration_seconds: float = 0.0
    ) -> str:
        """Remove the adapters of other numbers than `kept`, load one, and return the digest of its files, "" without.

        `iteration_seconds`: bound of an iteration. Before the change workers may have one per partition and one more.
        Raises ConfigurationError if a worker refuses (others may have loaded it), WorkerLostError also after `close`.
        """
        if not self._connections:
            raise WorkerLostError(f"the connections to pipeline {self.id} are closed", evidence=Evidence.GONE)
        timeout_ms = int(iteration_seconds * 1000) * (len(self._connections) + 1)
        request = pb.ChangeAdaptersRequest(epoch=self.epoch, kept=kept, loaded=loaded, timeout_ms=timeout_ms)
        changed = await all_workers(worker.change_adapters(request) for worker in self._connections)
        digests = {reply.digest for reply in changed}
        if len(digests) > 1:
            raise ConfigurationError("the workers of a pipeline have different files there")
        return str(digests.pop())

    async def serve(self, receiver: PipelineReceiver) -> None:
        """Transfer iterations and results until a worker reports a fault or is lost (see `reported`).

        Raises what a method of `receiver` raises.
        """
        self._tasks = [
            asyncio.create_task(coroutine)
            for coroutine in (self._write(), self._read_acks(receiver), self._read_results(receiver))
        ]
        broken = asyncio.create_task(self._faults.broken.wait())
        try:
            done, _ = await asyncio.wait([*self._tasks, broken], return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            self._over = True
            broken.cancel()

    @property
    def reported(self) -> list[WorkerLostError]:
        """Faults reported by the workers so far."""
        return self._faults.errors

    async def reported_until_conclusive(self) -> list[WorkerLostError]:
        """Return `reported` once the cause is known or no further fault is expected (FaultCollector.settle)."""
        await self._faults.settle(self._tasks[1:])
        return self._faults.errors

    async def shutdown(self, reason: str) -> None:
        """Shut the workers down and close the channels."""
        await asyncio.gather(*(worker.shutdown(reason) for worker in self._connections))
        await self.close()

    async def close(self) -> None:
        """Close the channels; the workers keep running."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        connections, self._connections = self._connections, []
        await asyncio.gather(*(worker.close() for worker in connections))

    async def _write(self) -> None:
        while True:
            iteration = await self._outgoing.get()
            try:
                await self._run.write(iteration)
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
                await asyncio.Event().wait()  # the reader of this stream gets and reports the status

    async def _read_acks(self, receiver: PipelineReceiver) -> None:
        async for ack in self._messages(self._run, self._connections[0]):
            for timing in ack.timing:
                receiver.on_timing(timing)
            if ack.HasField("departure") and ack.epoch == self.epoch and not self._over:
                receiver.on_departure(self._address(ack.departure.partition))

    async def _read_results(self, receiver: PipelineReceiver) -> None:
        async for result in self._messages(self._results, self._connections[-1]):
            if result.epoch == self.epoch and not self._over:  # else the requests have been rewound
                receiver.on_timing(result.timing)
                receiver.on_result(result)

    async def _messages(self, stream: Any, worker: WorkerConnection) -> Any:
        """Yield the messages of a stream, and report its faults and its end."""
        closed = WorkerLostError(f"worker {worker.address} closed its stream", None, worker.address, Evidence.GONE)
        try:
            async for message in stream:
                if not message.HasField("fault"):
                    yield message
                elif message.fault.epoch >= self.epoch:  # faults of older epochs are stale
                    self._faults.report(self._lost(message.fault), message.fault)
        except grpc.aio.AioRpcError as error:
            fault = faults.from_error(error)
            current = fault is not None and fault.epoch >= self.epoch
            closed = self._lost(fault) if fault is not None and current else worker.gone(error)
        self._faults.report(closed)

    def _lost(self, fault: pb.Fault) -> WorkerLostError:
        return lost_worker(fault, self._address(fault.partition))

    def _address(self, partition: int) -> str:
        """Return the address of a partition's worker, of the last one for a number that is too high."""
        return self._spec.workers[min(partition, len(self._spec.workers) - 1)]
