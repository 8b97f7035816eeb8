"""`PipelineListener`: what a supervisor tells the engine about its pipeline."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from orca_protos import engine_pb2 as pb

from orca_master.scheduling.batch import Batch

if TYPE_CHECKING:
    from orca_master.engine.supervisor import PipelineSupervisor


class PipelineListener(Protocol):
    """Callbacks for the life cycle of a pipeline. Called on the event loop of the supervisor."""

    def on_change(self) -> None:
        """Publish the changed report."""

    def on_progress(self) -> None:
        """Note that the formation of a pipeline has come further than any since the pipeline last served."""

    def on_serving(self, supervisor: PipelineSupervisor) -> None:
        """Start using a formed pipeline: `send` may be called."""

    def on_result(self, supervisor: PipelineSupervisor, batch: Batch, result: pb.IterationResult) -> None:
        """Process the result of an iteration."""

    def on_timing(self, pipeline: str, timing: pb.StageTiming) -> None:
        """Record the timings of an iteration on one partition."""

    def on_departure(self, supervisor: PipelineSupervisor) -> None:
        """Decide whether a pipeline is given up of which a worker got a signal to end (`supervisor.departure`)."""

    def on_lost(self, supervisor: PipelineSupervisor, reason: str) -> None:
        """Rewind the requests of a lost pipeline. `reason`: the cause as far as known."""

    def on_failure(self, supervisor: PipelineSupervisor, error: BaseException) -> None:
        """Handle a failure: the pipeline was not formed or was lost, or its supervisor failed."""
