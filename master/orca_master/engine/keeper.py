"""`PipelineKeeper`: one entry of the topology for as long as it is in there.

form → serve → lost → form again … if the engine has a `recovery_timeout`: its workers are supervised (by a StatefulSet)
and come back under the same address. With a recovery timeout of 0, recovery is disabled: the first failure is the last.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from orca_contract.reasons import Reason
from orca_contract.state import FailureReport, PipelinePhase
from orca_contract.topology import PipelineSpec, Topology

from orca_master.engine.config import EngineConfig
from orca_master.engine.faults import WorkerLostError
from orca_master.engine.pipeline import Pipeline
from orca_master.errors import ConfigurationError

logger = logging.getLogger(__name__)

RETRY_SECONDS = 1.0


@dataclass(slots=True)
class PipelineKeeper:
    """Forms `spec` and hands it to `serve`, which returns why it was lost; again and again.

    `keep` raises ConfigurationError or WorkerLostError only if recovery is disabled.
    """

    spec: PipelineSpec
    topology: Topology
    config: EngineConfig
    serve: Callable[[Pipeline], Awaitable[WorkerLostError]]
    pipeline: Pipeline = field(init=False)
    last_failure: FailureReport | None = None

    def __post_init__(self) -> None:
        self.pipeline = Pipeline(self.spec, self.topology, self.config)

    @property
    def phase(self) -> PipelinePhase:
        """The pipeline's phase, RECOVERING after it had failed once."""
        if self.pipeline.phase is not PipelinePhase.SERVING and self.last_failure is not None:
            return PipelinePhase.RECOVERING
        return self.pipeline.phase

    async def keep(self) -> None:
        """Runs until it is cancelled, or until the first failure if recovery is disabled."""
        while True:
            try:
                await self.pipeline.form()
            except (ConfigurationError, WorkerLostError) as error:
                self._note(error)
                if not self.config.recovery_timeout:
                    raise
                logger.warning("pipeline %s is not formed: %s", self.spec.id, error)
            else:
                if (failure := self.last_failure) is not None:
                    self.last_failure = failure.model_copy(update={"recovery_seconds": time.time() - failure.at})
                self._note(await self.serve(self.pipeline))
                if not self.config.recovery_timeout:
                    return
            await self.pipeline.close()
            self.pipeline = Pipeline(self.spec, self.topology, self.config)
            await asyncio.sleep(RETRY_SECONDS)

    def _note(self, error: Exception) -> None:
        """Keeps the time of the first failure of a series, and the message of the latest."""
        lost = error if isinstance(error, WorkerLostError) else None
        reason = Reason.INVALID_SPEC
        if lost is not None:
            reason = lost.reason or _REASONS[self.pipeline.phase]
        going_on = self.last_failure is not None and self.last_failure.recovery_seconds is None
        at = self.last_failure.at if going_on and self.last_failure else time.time()
        self.last_failure = FailureReport(
            at=at, reason=reason, worker=lost.worker if lost else "", message=str(error), recovery_seconds=None
        )


_REASONS = {
    PipelinePhase.CONNECTING: Reason.RENDEZVOUS_TIMEOUT,
    PipelinePhase.LOADING: Reason.WORKER_CRASH_LOOP,
    PipelinePhase.FORMING: Reason.RENDEZVOUS_TIMEOUT,
    PipelinePhase.RECOVERING: Reason.COMMUNICATOR_ERROR,
}
"""What a failure without a reason of its own means, by the phase in which it came."""
