"""A scheduling on a live engine: real workers, real time, the trace offered in an open loop. No HTTP, no tokenizer.

The workers and their pipeline are the ones that `orca serve` starts, so what two schedulings take here differs in their
decisions only.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from orca_contract.kv_blocks import BLOCK_SIZE
from orca_contract.topology import ModelSpec
from orca_master.commands.serve import local_topology
from orca_master.engine.config import EngineConfig
from orca_master.engine.pipeline import Pipeline
from orca_master.scheduling.scheduler import Batch
from orca_protos import engine_pb2 as pb

from orca_bench.outcome import Fate, Run, Span
from orca_bench.scheduling import Scheduling
from orca_bench.simulator import as_request, label
from orca_bench.traces import TracedRequest


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """Which model on which engine. `slots` K/V slots, `longest_iteration` tokens at most in an iteration."""

    model: Path
    num_partitions: int = 1
    num_ranks: int = 1
    dtype: str = "auto"
    device: str = "cpu"
    slots: int = 16384
    longest_iteration: int = 16384
    enforce_eager: bool = False


class LiveEngine:
    """A formed pipeline that runs one trace after the other; made on a running loop."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._current: _Session | None = None
        self._serving = asyncio.create_task(self._serve())

    @property
    def slots(self) -> int:
        """K/V slots of the pipeline."""
        return self._pipeline.num_blocks * BLOCK_SIZE

    async def run(self, trace: Sequence[TracedRequest], scheduling: Scheduling, time_limit: float) -> Run:
        """Offers the trace and returns when its last token is there.

        Raises TimeoutError after `time_limit` seconds, or WorkerLostError; the engine takes no other trace then.
        """
        session = self._current = _Session(self._pipeline, scheduling, trace)
        running = asyncio.create_task(session.run())
        await asyncio.wait({running, self._serving}, timeout=time_limit, return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            return running.result()
        running.cancel()
        if self._serving.done():
            self._serving.result()
        raise TimeoutError(f"the trace took more than {time_limit:.0f} s")

    async def close(self) -> None:
        """Ends the workers."""
        self._serving.cancel()
        await asyncio.gather(self._serving, return_exceptions=True)
        await self._pipeline.shutdown("the benchmark ends")

    async def _serve(self) -> None:
        def on_result(result: pb.IterationResult) -> None:
            assert self._current is not None
            self._current.on_result(result)

        def on_timing(timing: pb.StageTiming) -> None:
            if self._current is not None:
                self._current.on_timing(timing)

        await self._pipeline.serve(on_result, on_timing)


@contextlib.asynccontextmanager
async def live_engine(spec: EngineSpec, addresses: list[str]) -> AsyncIterator[LiveEngine]:
    """Forms a pipeline over workers that listen (`commands.serve.local_workers`); raises ConfigurationError."""
    model = ModelSpec(path=str(spec.model), served_name=spec.model.name, dtype=spec.dtype)
    topology = local_topology(model, spec.num_partitions, spec.num_ranks, spec.device, addresses)
    config = EngineConfig(kv_slots=spec.slots, token_budget=spec.longest_iteration, enforce_eager=spec.enforce_eager)
    pipeline = Pipeline(topology.pipelines[0], topology, config)
    try:
        await pipeline.form()
    except BaseException:
        await pipeline.shutdown("it could not be formed")
        raise
    engine = LiveEngine(pipeline)
    try:
        yield engine
    finally:
        await engine.close()


class _Session:
    """One trace under way."""

    def __init__(self, pipeline: Pipeline, scheduling: Scheduling, trace: Sequence[TracedRequest]) -> None:
        self._pipeline = pipeline
        self._scheduling = scheduling
        self._trace = trace
        self._fates = [Fate(traced.arrival) for traced in trace]
        self._num_missing = sum(traced.output_length for traced in trace)
        self._in_flight: deque[tuple[int, Batch]] = deque()
        self._labels: dict[int, str] = {}
        self._spans: list[Span] = []
        self._end = 0.0
        self._done = asyncio.Event()
        self._begin = time.monotonic()

    async def run(self) -> Run:
        """Offers every request at its time, and waits for the last token."""
        for index, traced in enumerate(self._trace):
            await asyncio.sleep(max(0.0, traced.arrival - self._now()))
            self._scheduling.add(as_request(index, traced, self._pipeline.facts.vocabulary_size))
            if index + 1 == len(self._trace) or self._trace[index + 1].arrival > traced.arrival:
                self._dispatch()
        await self._done.wait()
        return Run(self._fates, self._end, len(self._labels), self._spans)

    def on_result(self, result: pb.IterationResult) -> None:
        """Commits, and dispatches what may run now."""
        sequence, batch = self._in_flight.popleft()
        assert sequence == result.sequence, f"result {result.sequence} came where {sequence} was due"
        self._end = self._now()
        for request in self._scheduling.commit(batch, list(result.token)):
            self._fates[request.arrival].tokens.append(self._end)
            self._num_missing -= 1
        self._dispatch()
        if not self._num_missing and not self._in_flight:
            self._done.set()

    def on_timing(self, timing: pb.StageTiming) -> None:
        """Notes what a stage did; timings of an earlier trace may still come."""
        if (name := self._labels.get(timing.sequence)) is not None:
            begin, end = (moment / 1e9 - self._begin for moment in (timing.started_ns, timing.ended_ns))
            self._spans.append(Span(self._pipeline.id, timing.partition, timing.sequence, begin, end, name))

    def _dispatch(self) -> None:
        while batch := self._scheduling.next_batch():
            sequence = self._pipeline.send(batch)
            self._in_flight.append((sequence, batch))
            self._labels[sequence] = label(batch)

    def _now(self) -> float:
        return time.monotonic() - self._begin
