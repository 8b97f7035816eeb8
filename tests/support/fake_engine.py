"""An `EngineMaster` with fake workers in the test's process (fake_workers.py)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from orca_contract.state import EngineState, PipelinePhase
from orca_contract.topology import ModelSpec, PipelineSpec, Topology
from orca_master.engine.config import EngineConfig
from orca_master.engine.engine_master import EngineMaster
from orca_master.engine.faults import WorkerLostError
from orca_master.scheduling.request import FinishReason

from support.engines import Harness
from support.fake_workers import Cluster


def topology(*pipelines: str, partitions: int = 1) -> Topology:
    workers = {name: [f"{name}:{index}" for index in range(partitions)] for name in pipelines}
    return Topology(
        model=ModelSpec(path="m", served_name="m"),
        pipeline_parallel_size=partitions,
        pipelines=[PipelineSpec(id=name, workers=addresses) for name, addresses in workers.items()],
    )


class Engine(Harness):
    """An engine with the fake workers of a Cluster."""

    def __init__(self, topology: Topology, config: EngineConfig | None = None, num_blocks: int = 64) -> None:
        super().__init__()
        self.cluster = Cluster(num_blocks)
        self.engine = EngineMaster(topology, config or EngineConfig(), self.deliver, self, self.cluster.make)

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait until `holds()`, for at most 60 s."""
        async with asyncio.timeout(60):
            while not holds():
                await asyncio.sleep(0.001)

    async def lose_after(self, iterations: int, name: str, error: WorkerLostError, ended: Callable[[], bool]) -> None:
        """Lose the workers of a pipeline after further iterations of the engine, or when `ended()`."""
        count = self.engine.snapshot.num_iterations + iterations
        await self.until(lambda: ended() or self.engine.snapshot.num_iterations >= count)
        self.cluster.newest(name).lose(error)

    def phase(self, pipeline: str) -> PipelinePhase | str:
        return next(entry.phase for entry in self.engine.snapshot.pipelines if entry.id == pipeline)

    async def ended(self, request_id: str) -> str | None:
        """Return the error with which a request ends."""
        async with asyncio.timeout(60):
            while True:
                output = await self.outputs.get()
                if output.request_id == request_id and output.finish_reason is not None:
                    assert output.finish_reason is FinishReason.ERROR
                    return output.error


def play(engine: Callable[[], Engine], scene: Callable[[Engine], Awaitable[None]]) -> None:
    """Run a scene, stop the engine, and assert that it has no requests."""

    async def run() -> None:
        actor = engine()
        async with asyncio.timeout(120):
            await scene(actor)
            await actor.engine.stop("the test ends")
        assert actor.engine.snapshot.state is EngineState.STOPPED
        assert (actor.engine.snapshot.num_running, actor.engine.snapshot.num_waiting) == (0, 0)

    asyncio.run(run())
