"""`Departures`: decides when a pipeline is given up of which a worker is shutting down.

| situation | the pipeline is given up |
|---|---|
| the master drains | never: its requests finish on this pipeline |
| another pipeline serves, and none of its workers is shutting down | at once: its requests continue there |
| no other pipeline serves, lost pipelines recover | after GRACE_SECONDS: its requests wait for the new worker |
| no other pipeline serves, nothing restarts the workers | never: requests finish as long as the worker computes |

The pipeline computes until then. The worker ends when the pipeline is given up, and on its own after its drain timeout.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from orca_master.engine.faults import WorkerLostError
from orca_master.engine.supervisor import PipelineSupervisor

GRACE_SECONDS = 5.0
"""At the deletion of a deployment Kubernetes signals workers and master at about the same time, and `orca drain` first
waits LINGER_SECONDS (commands/drain.py). The master must know of its drain before it gives up its only pipeline."""


class Departures:
    """`serving`: the pipelines that serve, by id; the engine keeps the mapping up to date."""

    def __init__(self, serving: Mapping[str, PipelineSupervisor]) -> None:
        self._serving = serving
        self._draining = False

    def begin_drain(self) -> None:
        """Give up no pipeline because of a departure from now on."""
        self._draining = True

    def note(self, supervisor: PipelineSupervisor) -> None:
        """Note that a worker of a serving pipeline is shutting down (`supervisor.departure`)."""
        departure = supervisor.departure
        assert departure is not None
        asyncio.get_running_loop().call_later(GRACE_SECONDS, self._end_grace, supervisor, departure)
        self.move()

    def move(self) -> None:
        """Give up the pipelines of departing workers if another pipeline serves. Call it when a pipeline serves."""
        working = [supervisor for supervisor in self._serving.values() if supervisor.is_open]
        if self._draining or all(supervisor.departure is not None for supervisor in working):
            return
        for supervisor in working:
            if supervisor.departure is not None:
                supervisor.give_up(supervisor.departure)

    def _end_grace(self, supervisor: PipelineSupervisor, departure: WorkerLostError) -> None:
        """Give up a pipeline that has not been given up or lost since `departure`."""
        if supervisor.departure is departure and supervisor.recovers and not self._draining:
            supervisor.give_up(departure)
