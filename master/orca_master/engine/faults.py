"""Why a pipeline was lost: the cause, chosen from what its workers report.

A lost worker breaks several streams and calls, and the first complaint to arrive is rarely the cause's. Workers say
which of their faults is a cause and which a consequence (protos/engine.proto, Fault), so a cause is taken at once; only
where nothing but consequences is known does the master wait for more, up to FAULTS_SECONDS.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Collection, Coroutine, Iterable, Sequence
from typing import Any

from orca_contract.reasons import Reason
from orca_protos import engine_pb2 as pb
from orca_protos.deadlines import FAULTS_SECONDS
from orca_protos.together import together

from orca_master.errors import EngineUnavailableError


class Evidence(enum.IntEnum):
    """How an error is related to the cause, the closest first."""

    CAUSE = 0
    """The part that failed was named by its own controller, or by the master."""
    GONE = 1
    """A controller's stream or connection broke without a fault: its process, host or network is gone."""
    CONSEQUENCE = 2
    """A rank lost a neighbour."""


class WorkerLostError(EngineUnavailableError):
    """A worker that did not answer, or whose part of the engine failed.

    `reason` is set if the cause is known, `worker` is the address.
    """

    def __init__(
        self, message: str, reason: Reason | None = None, worker: str = "", evidence: Evidence = Evidence.CAUSE
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.worker = worker
        self.evidence = evidence


def lost_worker(fault: pb.Fault, address: str) -> WorkerLostError:
    """Return the error for a fault whose origin is the worker at `address`."""
    evidence = Evidence.CAUSE
    if fault.kind in (pb.FAULT_KIND_CONSEQUENCE, pb.FAULT_KIND_UNSPECIFIED):
        evidence = Evidence.CONSEQUENCE if fault.HasField("tensor_rank") else Evidence.GONE
    reason = Reason.WORKER_OOM_KILLED if fault.out_of_memory else None
    return WorkerLostError(f"worker {address}: {fault.message}", reason, address, evidence)


def choose(errors: Iterable[BaseException]) -> BaseException:
    """Return the error to report: the first that is no WorkerLostError, or those closest to the cause, as one."""
    lost: list[WorkerLostError] = []
    for error in errors:
        if not isinstance(error, WorkerLostError):
            return error
        lost.append(error)
    return closest(lost)


def closest(errors: Sequence[WorkerLostError]) -> WorkerLostError:
    """Return the errors closest to the cause as one: all their messages, reason and worker of the first."""
    evidence = min(error.evidence for error in errors)
    chosen = [error for error in errors if error.evidence is evidence]
    if len(chosen) == 1:
        return chosen[0]
    message = "; ".join(dict.fromkeys(map(str, chosen)))
    return WorkerLostError(message, chosen[0].reason, chosen[0].worker, evidence)


def is_conclusive(error: BaseException) -> bool:
    """Whether no other error can be the cause of this one."""
    return not isinstance(error, WorkerLostError) or error.evidence is Evidence.CAUSE


async def all_workers(calls: Iterable[Coroutine[Any, Any, Any]]) -> list[Any]:
    """Awaits calls to all workers of a pipeline; raises the cause if one fails (see `together`)."""
    return await together(calls, is_conclusive, FAULTS_SECONDS, choose)


class FaultCollector:
    """What the hot streams of one pipeline report."""

    def __init__(self) -> None:
        self.errors: list[WorkerLostError] = []
        self.broken = asyncio.Event()
        """Set by the first report."""
        self._conclusive = asyncio.Event()

    def report(self, error: WorkerLostError) -> None:
        """Take an error."""
        self.errors.append(error)
        self.broken.set()
        if is_conclusive(error):
            self._conclusive.set()

    async def settle(self, streams: Collection[asyncio.Task[None]]) -> None:
        """Wait until the cause is known or every one of `streams` has ended, FAULTS_SECONDS at most."""
        waits = [asyncio.ensure_future(self._conclusive.wait()), asyncio.ensure_future(_ended(streams))]
        try:
            await asyncio.wait(waits, timeout=FAULTS_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)


async def _ended(streams: Collection[asyncio.Task[None]]) -> bool:
    if streams:
        await asyncio.wait(streams)
    return True
