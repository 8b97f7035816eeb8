"""`Membership`: which pipelines the engine keeps: those of the topology, a keeper and its task for each.

Pipelines come and go while the engine runs, that is how it scales; anything else in a topology is another engine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from orca_contract.topology import PipelineSpec, Topology

from orca_master.engine.config import EngineConfig
from orca_master.engine.faults import WorkerLostError
from orca_master.engine.keeper import PipelineKeeper
from orca_master.engine.pipeline import Pipeline
from orca_master.errors import ConfigurationError


class Membership:
    """The pipelines of `topology`. `config` is for those that come; it may be replaced.

    A formed pipeline is given to `serve` (see PipelineKeeper); `on_failure` gets the error of a keeper that gave up.
    """

    def __init__(
        self,
        topology: Topology,
        config: EngineConfig,
        serve: Callable[[Pipeline], Awaitable[WorkerLostError]],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self.topology = topology
        self.config = config
        self.keepers: dict[str, PipelineKeeper] = {}
        self._serve = serve
        self._on_failure = on_failure
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._applying = asyncio.Lock()

    def begin(self) -> None:
        """Begins to form every pipeline."""
        for spec in self.topology.pipelines:
            self._keep(spec)

    async def apply(self, topology: Topology) -> None:
        """Takes pipelines in and out; requests of those that leave are rewound and continue on the others.

        Raises ConfigurationError if anything but the pipelines differs.
        """
        if topology.model_copy(update={"pipelines": self.topology.pipelines}) != self.topology:
            raise ConfigurationError("topology: only `pipelines` can change while the engine runs")
        async with self._applying:
            self.topology = topology
            wanted = {spec.id: spec for spec in topology.pipelines}
            leaving = [name for name, keeper in self.keepers.items() if wanted.get(name) != keeper.spec]
            await self._cancel(leaving)
            for name in leaving:
                await self.keepers.pop(name).pipeline.close()
            for name, spec in wanted.items():
                if name not in self.keepers:
                    self._keep(spec)

    async def end(self) -> None:
        """Keeps nothing any longer; `part` remains to be called for each keeper's pipeline."""
        await self._cancel(list(self._tasks))

    async def part(self, pipeline: Pipeline, reason: str) -> None:
        """Ends a pipeline's workers, or leaves them to whoever restarts them."""
        await (pipeline.close() if self.config.recovery_timeout else pipeline.shutdown(reason))

    def _keep(self, spec: PipelineSpec) -> None:
        keeper = self.keepers[spec.id] = PipelineKeeper(spec, self.topology, self.config, self._serve)
        task = self._tasks[spec.id] = asyncio.create_task(keeper.keep())
        task.add_done_callback(self._note_end)

    def _note_end(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._on_failure(error)

    async def _cancel(self, names: list[str]) -> None:
        tasks = [self._tasks.pop(name) for name in names]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
