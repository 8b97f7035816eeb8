"""An `EngineMaster` with real worker processes, for tests of engine and workers together."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from orca_contract.topology import Communication, ModelSpec, PipelineSpec, Topology
from orca_master.engine.config import EngineConfig, WorkerOwner
from orca_master.engine.engine_master import EngineMaster
from orca_master.engine.messages import Output, Submission
from orca_master.scheduling.batch import Batch
from orca_master.scheduling.request import FinishReason
from orca_master.scheduling.sampling_parameters import SamplingParameters
from orca_protos import engine_pb2 as pb

START_SECONDS = 120
WORKER_COMMAND = (sys.executable, "-m", "orca_worker")


@contextlib.contextmanager
def worker_processes(
    count: int, commands: dict[int, Sequence[str]] | None = None
) -> Iterator[tuple[list[str], list[subprocess.Popen[bytes]]]]:
    """Start workers on Unix sockets; yield addresses and processes. `commands`: other commands by worker index."""
    with tempfile.TemporaryDirectory(prefix="orca-test-") as folder:
        addresses = [f"unix:{folder}/{index}.sock" for index in range(count)]
        processes = [
            subprocess.Popen(
                [*(commands or {}).get(index, WORKER_COMMAND), "--listen", address],
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )
            for index, address in enumerate(addresses)
        ]
        try:
            yield addresses, processes
        finally:
            for process in processes:
                process.terminate()
            for process in processes:
                try:
                    process.wait(15)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()


def topology(model: Path, addresses: list[str], tensor_parallel_size: int = 1) -> Topology:
    """Return a topology with one pipeline over `addresses`, in float32."""
    return Topology(
        model=ModelSpec(path=str(model), served_name=model.name, dtype="float32"),
        pipeline_parallel_size=len(addresses),
        tensor_parallel_size=tensor_parallel_size,
        communication=Communication(socket_interface="lo"),
        pipelines=[PipelineSpec(id="test-0", workers=addresses)],
    )


@dataclass
class Harness:
    """An engine whose outputs, batches, timings, preemptions and first tokens are recorded."""

    engine: EngineMaster = field(init=False)
    outputs: asyncio.Queue[Output] = field(default_factory=asyncio.Queue)
    batches: list[tuple[int, Batch]] = field(default_factory=list)
    timings: list[pb.StageTiming] = field(default_factory=list)
    preemptions: int = 0
    drafts: list[tuple[int, int, int]] = field(default_factory=list)
    first_tokens: list[tuple[float, float]] = field(default_factory=list)
    prompt_logprobs: dict[str, list[pb.PromptLogprobs]] = field(default_factory=dict)
    """By request, the parts that `collect` has seen."""

    def deliver(self, outputs: list[Output]) -> None:
        for output in outputs:
            self.outputs.put_nowait(output)

    def on_dispatch(self, sequence: int, batch: Batch) -> None:
        self.batches.append((sequence, batch))

    def on_preemption(self, count: int) -> None:
        self.preemptions += count

    def on_drafts(self, num_drafts: int, num_tokens: int, num_accepted: int) -> None:
        self.drafts.append((num_drafts, num_tokens, num_accepted))

    def on_first_token(self, queue_seconds: float, prefill_seconds: float) -> None:
        self.first_tokens.append((queue_seconds, prefill_seconds))

    def on_timing(self, pipeline: str, timing: pb.StageTiming) -> None:
        self.timings.append(timing)

    def submission(
        self, request_id: str, prompt: tuple[int, ...], max_gen_tokens: int, priority: int = 0, **sampling: float
    ) -> Submission:
        parameters = SamplingParameters(**sampling)  # type: ignore[arg-type]
        return Submission(request_id, prompt, max_gen_tokens, parameters, frozenset(), priority)

    def submit(self, request_id: str, prompt: tuple[int, ...], max_gen_tokens: int, **sampling: float) -> None:
        self.engine.submit(self.submission(request_id, prompt, max_gen_tokens, **sampling))  # type: ignore[arg-type]

    async def collect(self, count: int, timeout: float = 120.0) -> dict[str, list[int]]:
        """Wait until `count` requests have ended; return their tokens. Fails on an error."""
        tokens: dict[str, list[int]] = {}
        async with asyncio.timeout(timeout):
            while count:
                output = await self.outputs.get()
                assert output.finish_reason is not FinishReason.ERROR, output.error
                if output.prompt_logprobs is not None:
                    self.prompt_logprobs.setdefault(output.request_id, []).append(output.prompt_logprobs)
                if output.token is not None or output.prompt_logprobs is None:
                    assert output.token is not None
                    tokens.setdefault(output.request_id, []).append(output.token)
                count -= output.finish_reason is not None
        return tokens

    def mixed_iterations(self) -> int:
        """Return the number of iterations with requests of both phases, initiation and increment."""
        count = 0
        for _, batch in self.batches:
            beginning = [scheduled.context_length < len(scheduled.request.prompt) for scheduled in batch.requests]
            count += any(beginning) and not all(beginning)
        return count

    def assert_nothing_held(self) -> None:
        """Assert that all blocks and rows are free and the engine has no requests."""
        for pipeline in self.engine.scheduler._pipelines.values():
            assert pipeline.ledger.num_free_blocks == pipeline.ledger.num_blocks
            assert pipeline.ledger.num_holders == 0
            assert pipeline.admitted == []
            assert pipeline.in_flight == 0
        assert len(self.engine.pool) == 0
        assert len(self.engine._requests) == 0


@contextlib.asynccontextmanager
async def engine(
    model: Path,
    pipeline_parallel_size: int,
    config: EngineConfig | None = None,
    commands: dict[int, Sequence[str]] | None = None,
    start: bool = True,
    tensor_parallel_size: int = 1,
) -> AsyncIterator[Harness]:
    """Yield a harness around an engine with its own workers, which end with the engine. `start`: start the engine."""
    with worker_processes(pipeline_parallel_size, commands) as (addresses, _):
        harness = Harness()
        harness.engine = EngineMaster(
            topology(model, addresses, tensor_parallel_size), config or EngineConfig(), harness.deliver, harness
        )
        try:
            if start:
                await harness.engine.start()
            yield harness
        finally:
            await harness.engine.stop("the test ends")


def greedy_tokens(
    model: Path, prompts: Sequence[tuple[int, ...]], num_tokens: int, commands: dict[int, Sequence[str]]
) -> list[list[int]]:
    """Return the greedy tokens of each prompt, in batches of up to four, over one partition per command."""

    async def run() -> dict[str, list[int]]:
        async with engine(model, len(commands), EngineConfig(max_batch_size=4), commands) as harness:
            for number, prompt in enumerate(prompts):
                harness.submit(str(number), prompt, num_tokens)
            return await harness.collect(len(prompts))

    found = asyncio.run(run())
    return [found[str(number)] for number in range(len(prompts))]


def leaving_workers(config: EngineConfig) -> EngineConfig:
    """Return `config` for a master that does not own its workers, like in a Kubernetes cluster.

    Requests of a lost pipeline fail after a second.
    """
    return dataclasses.replace(config, worker_owner=WorkerOwner.CLUSTER, recovery_timeout=1.0)


@contextlib.asynccontextmanager
async def engine_over(
    topology: Topology, config: EngineConfig | None = None, start: bool = True
) -> AsyncIterator[Harness]:
    """Yield a harness around an engine that leaves the topology's workers alive. `start`: start the engine."""
    harness = Harness()
    harness.engine = EngineMaster(topology, leaving_workers(config or EngineConfig()), harness.deliver, harness)
    try:
        if start:
            async with asyncio.timeout(START_SECONDS):
                await harness.engine.start()
        yield harness
    finally:
        await harness.engine.stop("the test ends")
