"""Runs a `Scheduling` on a live engine: real workers, real time, open-loop load. No HTTP, no tokenizer.

Workers and pipeline are started as by `orca serve`, so that runs of two schedulings differ only in their decisions.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orca_contract.kv_blocks import BLOCK_SIZE
from orca_contract.model_choices import AllReduce, AttentionBackend, Backend, Device, KvCacheDtype, Quantization
from orca_contract.topology import ModelSpec, Topology
from orca_master.commands.local_topology import local_topology
from orca_master.engine.config import EngineConfig
from orca_master.engine.pipeline import Pipeline
from orca_master.engine.supervisor import PipelineSupervisor
from orca_master.engine.workers import MakeWorkers, PipelineWorkers
from orca_master.scheduling.batch import Batch
from orca_protos import engine_pb2 as pb

from orca_bench.outcome import Fate, Run, Span
from orca_bench.scheduling import Scheduling
from orca_bench.simulator import as_request, label
from orca_bench.traces import TracedRequest

ITERATION_SECONDS = 600.0
"""Timeout of one iteration, long because large models are slow on a CPU."""


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """Model and engine options. `slots` K/V slots, at most `longest_iteration` tokens per iteration.

    `max_model_len`: most tokens of a sequence, None for the model's.
    """

    model: Path
    num_partitions: int = 1
    num_ranks: int = 1
    dtype: str = "auto"
    device: Device = "cpu"
    backend: Backend = "gloo"
    slots: int = 16384
    longest_iteration: int = 16384
    enforce_eager: bool = False
    quantization: Quantization = "none"
    kv_cache_dtype: KvCacheDtype = "auto"
    attention_backend: AttentionBackend = "auto"
    all_reduce: AllReduce = "library"
    max_model_len: int | None = None


def _check(workers: PipelineWorkers) -> None:
    """Accept any weights: there is no other pipeline."""


async def _complete(workers: PipelineWorkers) -> None:
    """Do nothing: no adapters are loaded later."""


class LiveEngine:
    """A pipeline that runs traces one by one; the listener of its supervisor. Create it on a running loop."""

    def __init__(self, topology: Topology, config: EngineConfig, make_workers: MakeWorkers = Pipeline) -> None:
        spec = topology.pipelines[0]
        self._supervisor = PipelineSupervisor(spec, topology, config, self, make_workers, _check, _complete)
        self._formed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._current: _Session | None = None

    @property
    def slots(self) -> int:
        """Number of K/V slots of the pipeline."""
        return self._supervisor.workers.num_blocks * BLOCK_SIZE

    async def form(self) -> None:
        """Form the pipeline; raise ConfigurationError or WorkerLostError."""
        self._supervisor.begin()
        await self._formed

    async def run(self, trace: Sequence[TracedRequest], scheduling: Scheduling, time_limit: float) -> Run:
        """Run the trace until its last token.

        Raises TimeoutError after `time_limit` seconds, or WorkerLostError; the engine then cannot run further traces.
        """
        session = self._current = _Session(self._supervisor, scheduling, trace)
        running = asyncio.create_task(session.run())
        ends: set[asyncio.Future[Any]] = {running, self._lost}
        await asyncio.wait(ends, timeout=time_limit, return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            return running.result()
        running.cancel()
        if self._lost.done():
            self._lost.result()
        raise TimeoutError(f"the trace took more than {time_limit:.0f} s")

    async def close(self) -> None:
        """Shut the workers down."""
        await self._supervisor.end()
        await self._supervisor.disconnect("the benchmark ends")
        self._lost.cancel()

    def on_progress(self) -> None:
        """See PipelineListener."""

    def on_change(self) -> None:
        """Do nothing: the state is not used."""

    def on_serving(self, supervisor: PipelineSupervisor) -> None:
        """Let `form` return."""
        if not self._formed.done():
            self._formed.set_result(None)

    def on_result(self, supervisor: PipelineSupervisor, batch: Batch, result: pb.IterationResult) -> None:
        """Forward the result to the current trace."""
        assert self._current is not None
        self._current.on_result(batch, list(result.token))

    def on_timing(self, pipeline: str, timing: pb.StageTiming) -> None:
        """Forward the timing to the current trace."""
        if self._current is not None:
            self._current.on_timing(timing)

    def on_departure(self, supervisor: PipelineSupervisor) -> None:
        """Do nothing: the pipeline computes until its worker ends."""

    def on_lost(self, supervisor: PipelineSupervisor, reason: str) -> None:
        """Do nothing: `on_failure` follows."""

    def on_failure(self, supervisor: PipelineSupervisor, error: BaseException) -> None:
        """Let `form` or `run` raise the cause."""
        result = self._lost if self._formed.done() else self._formed
        if not result.done():
            result.set_exception(error)


@contextlib.asynccontextmanager
async def live_engine(spec: EngineSpec, addresses: list[str]) -> AsyncIterator[LiveEngine]:
    """Form a pipeline of running workers (`commands.local_workers`); raise ConfigurationError."""
    model = ModelSpec(
        path=str(spec.model),
        served_name=spec.model.name,
        dtype=spec.dtype,
        max_model_len=spec.max_model_len,
        quantization=spec.quantization,
        kv_cache_dtype=spec.kv_cache_dtype,
    )
    topology = local_topology(model, spec.num_partitions, spec.num_ranks, spec.device, spec.backend, addresses)
    config = EngineConfig(
        kv_slots=spec.slots,
        token_budget=spec.longest_iteration,
        enforce_eager=spec.enforce_eager,
        attention_backend=spec.attention_backend,
        all_reduce=spec.all_reduce,
        stall_timeout=ITERATION_SECONDS,
    )
    engine = LiveEngine(topology, config)
    try:
        await engine.form()
        yield engine
    finally:
        await engine.close()


class _Session:
    """The run of one trace."""

    def __init__(self, supervisor: PipelineSupervisor, scheduling: Scheduling, trace: Sequence[TracedRequest]) -> None:
        self._supervisor = supervisor
        self._scheduling = scheduling
        self._trace = trace
        self._fates = [Fate(traced.arrival) for traced in trace]
        self._num_missing = sum(traced.output_length for traced in trace)
        self._labels: dict[int, str] = {}
        self._spans: list[Span] = []
        self._end = 0.0
        self._done = asyncio.Event()
        self._begin = time.monotonic()

    async def run(self) -> Run:
        """Add each request at its arrival, and wait for the last token."""
        for index, traced in enumerate(self._trace):
            await asyncio.sleep(max(0.0, traced.arrival - self._now()))
            self._scheduling.add(as_request(index, traced, self._supervisor.workers.facts.vocabulary_size))
            if index + 1 == len(self._trace) or self._trace[index + 1].arrival > traced.arrival:
                self._dispatch()
        await self._done.wait()
        return Run(self._fates, self._end, len(self._labels), self._spans)

    def on_result(self, batch: Batch, tokens: list[int]) -> None:
        """Commit the result, and dispatch further iterations."""
        self._end = self._now()
        for request in self._scheduling.commit(batch, tokens):
            self._fates[request.arrival].tokens.append(self._end)
            self._num_missing -= 1
        self._dispatch()
        if not self._num_missing and not self._supervisor.num_in_flight:
            self._done.set()

    def on_timing(self, timing: pb.StageTiming) -> None:
        """Record the span of a stage; ignore late timings of an earlier trace."""
        if (name := self._labels.get(timing.sequence)) is not None:
            begin, end = (time_ns / 1e9 - self._begin for time_ns in (timing.started_ns, timing.ended_ns))
            self._spans.append(Span(self._supervisor.id, timing.partition, timing.sequence, begin, end, name))

    def _dispatch(self) -> None:
        while batch := self._scheduling.next_batch():
            self._labels[self._supervisor.send(batch)] = label(batch)

    def _now(self) -> float:
        return time.monotonic() - self._begin
