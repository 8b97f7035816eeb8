"""What goes into the engine master and what comes out: submissions, outputs, and the watcher's protocol."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from orca_protos import engine_pb2 as pb

from orca_master.scheduling.batch import Batch
from orca_master.scheduling.request import FinishReason
from orca_master.scheduling.sampling_parameters import SamplingParameters


@dataclass(frozen=True, slots=True)
class Submission:
    """A request as the endpoint hands it over; the engine gives it its arrival."""

    request_id: str
    prompt: Sequence[int]
    max_gen_tokens: int
    sampling: SamplingParameters
    stop_token_ids: frozenset[int]
    priority: int = 0


class Output(NamedTuple):
    """News of one request: the token that an iteration sampled for it, or its end. One is made for every token."""

    request_id: str
    token: int | None
    finish_reason: FinishReason | None
    error: str | None = None
    logprobs: pb.Logprobs | None = None


class EngineObserver(Protocol):
    """What metrics and tests may watch; called on the engine's loop, must not block."""

    def on_dispatch(self, sequence: int, batch: Batch) -> None:
        """Count an iteration that was sent."""

    def on_preemption(self, count: int) -> None:
        """Count requests that were preempted to make room."""

    def on_timing(self, pipeline: str, timing: pb.StageTiming) -> None:
        """Count an iteration that a partition computed."""


class RequestMetrics(Protocol):
    """Measures requests where all of them pass. Called on the endpoint's loop, must not block. Times in seconds."""

    def on_token(self, prompt_tokens: int, generated: int, since_arrival: float, since_last: float) -> None:
        """Count a token that reached its request; `generated` counts the request's tokens."""

    def on_finish(
        self, reason: str, prompt_tokens: int, generated: int, seconds: float, since_first_token: float
    ) -> None:
        """Count a request that ended."""

    def render(self) -> bytes:
        """Return all metrics in Prometheus' text format."""


class Observers:
    """Several observers as one."""

    def __init__(self, *observers: EngineObserver) -> None:
        self._observers = observers

    def on_dispatch(self, sequence: int, batch: Batch) -> None:
        """See EngineObserver."""
        for observer in self._observers:
            observer.on_dispatch(sequence, batch)

    def on_preemption(self, count: int) -> None:
        """See EngineObserver."""
        for observer in self._observers:
            observer.on_preemption(count)

    def on_timing(self, pipeline: str, timing: pb.StageTiming) -> None:
        """See EngineObserver."""
        for observer in self._observers:
            observer.on_timing(pipeline, timing)
