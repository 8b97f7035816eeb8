"""Root-cause selection: chooses the cause of a lost pipeline from the errors of its workers.

A lost worker breaks several streams and calls, and the first error to arrive is rarely the cause. Workers mark each
fault as a cause or a consequence (protos/engine.proto, Fault). A cause is reported immediately; if only consequences
are known, the master waits up to FAULTS_SECONDS for the cause, but no longer once every rank that another has lost has
itself reported the loss of a rank: all of them live, and probably only connections between ranks have failed.
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
    """Relation of an error to the root cause, the closest first."""

    CAUSE = 0
    """The failed component was named by its own controller or by the master."""
    GONE = 1
    """A stream or connection to a controller broke without a fault: its process, host or network failed."""
    CONSEQUENCE = 2
    """A rank lost the connection to another rank."""


class WorkerLostError(EngineUnavailableError):
    """A worker did not answer, or a rank or controller failed.

    `reason` is set if the cause is known, `worker` is the address. `outside`: no computation can be the cause.
    """

    def __init__(
        self,
        message: str,
        reason: Reason | None = None,
        worker: str = "",
        evidence: Evidence = Evidence.CAUSE,
        outside: bool = False,
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.worker = worker
        self.evidence = evidence
        self.outside = outside or evidence is not Evidence.CAUSE  # cut connections, silence


def lost_worker(fault: pb.Fault, address: str) -> WorkerLostError:
    """Return the error for a fault whose origin is the worker at `address`."""
    evidence = Evidence.CAUSE
    if fault.kind in (pb.FAULT_KIND_CONSEQUENCE, pb.FAULT_KIND_UNSPECIFIED):
        evidence = Evidence.CONSEQUENCE if fault.HasField("tensor_rank") else Evidence.GONE
    reason = Reason.WORKER_OOM_KILLED if fault.out_of_memory else None
    reason = Reason.DIFFERENT_WEIGHTS if fault.mixed_weights else reason
    return WorkerLostError(f"worker {address}: {fault.message}", reason, address, evidence, fault.outside)


def departing(worker: str) -> WorkerLostError:
    """Return the error for the worker at address `worker`, which got a signal to end."""
    message = f"worker {worker} is shutting down: it got a signal to end"
    return WorkerLostError(message, Reason.RECOVERING, worker, outside=True)


def stalled(seconds: float) -> WorkerLostError:
    """Return the error for an iteration that exceeded its bound; a cause that a worker reports explains more."""
    message = f"an iteration did not return within {seconds:.0f} s"
    return WorkerLostError(message, Reason.ENGINE_STALLED, evidence=Evidence.GONE)


def choose(errors: Iterable[BaseException]) -> BaseException:
    """Return the error to report: the first that is not a WorkerLostError, else the result of `closest`."""
    lost: list[WorkerLostError] = []
    for error in errors:
        if not isinstance(error, WorkerLostError):
            return error
        lost.append(error)
    return closest(lost)


def closest(errors: Sequence[WorkerLostError]) -> WorkerLostError:
    """Merge the errors closest to the cause into one: all messages, reason and worker of the first."""
    evidence = min(error.evidence for error in errors)
    chosen = [error for error in errors if error.evidence is evidence]
    if len(chosen) == 1:
        return chosen[0]
    message = "; ".join(dict.fromkeys(map(str, chosen)))
    outside = all(error.outside for error in chosen)
    return WorkerLostError(message, chosen[0].reason, chosen[0].worker, evidence, outside)


def is_conclusive(error: BaseException) -> bool:
    """Return True if `error` is a root cause."""
    return not isinstance(error, WorkerLostError) or error.evidence is Evidence.CAUSE


async def all_workers(calls: Iterable[Coroutine[Any, Any, Any]]) -> list[Any]:
    """Await calls to all workers of a pipeline; raise the root cause if a call fails (see `together`)."""
    return await together(calls, is_conclusive, FAULTS_SECONDS, choose)


class FaultCollector:
    """Errors reported on the streams `Run` and `Results` of one pipeline."""

    def __init__(self, ranks_per_worker: int) -> None:
        self.errors: list[WorkerLostError] = []
        self._ranks_per_worker = ranks_per_worker
        self._losses: dict[int, Sequence[int]] = {}
        """By rank that has reported a loss: the ranks one of which it has lost."""
        self.broken = asyncio.Event()
        """Set by the first report."""
        self._conclusive = asyncio.Event()

    def report(self, error: WorkerLostError, fault: pb.Fault | None = None) -> None:
        """Record an error, and the fault that a worker reported."""
        self.errors.append(error)
        self.broken.set()
        if fault is not None and error.evidence is Evidence.CONSEQUENCE:
            self._losses[fault.partition * self._ranks_per_worker + fault.tensor_rank] = fault.lost_rank
        if is_conclusive(error) or self._all_lost_ranks_live():
            self._conclusive.set()

    def _all_lost_ranks_live(self) -> bool:
        """Return True if ranks have lost others, each named, and each of these has reported a loss itself."""
        named = all(self._losses.values())
        return bool(self._losses) and named and self._losses.keys() >= set().union(*self._losses.values())

    async def settle(self, streams: Collection[asyncio.Task[None]]) -> None:
        """Wait until the cause is known, all lost ranks have lost others, or all `streams` have ended.

        At most FAULTS_SECONDS.
        """
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
