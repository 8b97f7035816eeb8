"""The actions that plan.py plans and execute.py executes."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar

from orca_contract import routes
from orca_contract.scheduler import SchedulerKnobs
from orca_contract.state import StateReport
from orca_contract.topology import Topology

from orca_operator.observe import Object


@dataclass(frozen=True, slots=True)
class Check:
    """Server-side apply of one object as a dry run: nothing is written, and a rejected object ends the pass."""

    manifest: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Apply:
    """Server-side apply of one object; a rejected `optional` one does not end the pass, and FullyApplied names it."""

    manifest: dict[str, Any]
    optional: bool = False


@dataclass(frozen=True, slots=True)
class ApplyAutoscaler:
    """Server-side apply of the autoscaler: if it is rejected, the pass goes on, and ScalingReady has the reason."""

    manifest: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Scale:
    """Change of the replicas of a StatefulSet, which otherwise stays as it is."""

    child: Object
    replicas: int


@dataclass(frozen=True, slots=True)
class Delete:
    """Deletion of one child."""

    child: Object


@dataclass(frozen=True, slots=True)
class ForceDelete:
    """Deletion of a pod without its kubelet, because `node` has been lost since `since`."""

    pod: Object
    node: str
    since: datetime


@dataclass(frozen=True, slots=True)
class Replace:
    """Deletion of all pods of a pipeline that makes no progress since `since`: Kubernetes creates them anew."""

    pipeline: str
    pods: tuple[Object, ...]
    since: datetime


@dataclass(frozen=True, slots=True)
class PutTopology:
    """`PUT /topology` to a revision's master."""

    route: ClassVar[str] = routes.TOPOLOGY
    revision: str
    body: Topology

    @staticmethod
    def reported(report: StateReport) -> Topology | None:
        """Return the part of a report that this change sets."""
        return report.topology


@dataclass(frozen=True, slots=True)
class PutScheduler:
    """`PUT /scheduler` to a revision's master."""

    route: ClassVar[str] = routes.SCHEDULER
    revision: str
    body: SchedulerKnobs

    def reported(self, report: StateReport) -> SchedulerKnobs | None:
        """Return the part of a report that this change sets.

        Of a field that the change has: the value in force; of a field that it omits: the value that an earlier change
        has set, which this one takes back.
        """
        if report.in_force is None or report.scheduler is None:
            return report.scheduler
        sets = {name for name in SchedulerKnobs.model_fields if getattr(self.body, name) is not None}
        return report.scheduler.model_copy(update={name: getattr(report.in_force, name) for name in sets})


Put = PutTopology | PutScheduler
Action = Check | Apply | ApplyAutoscaler | Scale | Delete | ForceDelete | Replace | Put
