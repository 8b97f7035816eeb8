"""`EngineClient`: the endpoint's interface to an engine on another thread or in another process."""

from __future__ import annotations

import abc
import math
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from orca_contract.state import EngineState

from orca_master.engine.adapter_registry import ServedAdapter
from orca_master.engine.messages import Output, Submission
from orca_master.engine.progress import Progress
from orca_master.engine.recovery import Recovery


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """Status of the engine for the endpoint. Numbers are 0 until the model is loaded; lengths in tokens."""

    state: EngineState
    failure: str
    draining: bool
    vocabulary_size: int
    max_model_len: int
    num_slots: int
    progress: Progress
    max_queued_requests: int
    max_queued_tokens: int
    recovery: Recovery
    expected_wait: float = 0.0
    """See EngineSnapshot."""
    max_expected_wait: float = math.inf
    """Bound of `expected_wait` beyond which every new request is refused; infinite if one can come before others."""
    drain_timeout: float = 30.0
    """Maximum wait for running requests at the end, in seconds."""
    adapters: tuple[ServedAdapter, ...] = ()
    """See EngineSnapshot."""
    embeds_only: bool = False
    """See FormedPipeline."""

    @property
    def unavailable(self) -> str:
        """The reason why the engine accepts no requests now, "" if it accepts them."""
        if self.draining:
            return "draining: the server is shutting down"
        if self.serves:
            return self.progress.stall(time.monotonic())
        if self.state is EngineState.RECOVERING and self.recovery.accepts(time.monotonic()):
            return ""
        return f"{self.state.value}: {self.failure or 'the model is not loaded yet'}"

    @property
    def not_ready(self) -> str:
        """The reason why clients should be sent to another master, "" if they should come here.

        A paused engine refuses them: there is no other master, and this one knows why.
        """
        return "" if self.state is EngineState.PAUSED and not self.draining else self.unavailable

    @property
    def retry_after(self) -> int:
        """Whole seconds after which a request that was refused because of the engine's state may be tried again."""
        return self.recovery.retry_after(time.monotonic()) if self._recovers else 1

    @property
    def retry_after_full(self) -> int:
        """Whole seconds, at least 1, in which the waiting requests are expected to have begun."""
        recovery = self.recovery.expected_wait(time.monotonic()) if self._recovers else 0.0
        return max(1, math.ceil(recovery + self.expected_wait))

    @property
    def _recovers(self) -> bool:
        return self.state is EngineState.RECOVERING and not self.draining

    @property
    def serves(self) -> bool:
        """True if a pipeline is in the state Serving."""
        return self.state is EngineState.SERVING

    @property
    def longest(self) -> int:
        """Maximum number of tokens of a prompt and its completion together."""
        return min(self.max_model_len, self.num_slots)


class EngineClient(abc.ABC):
    """Interface to an engine; used from one event loop."""

    @property
    @abc.abstractmethod
    def status(self) -> EngineStatus:
        """The current status of the engine."""

    @abc.abstractmethod
    def submit(self, submission: Submission, receive: Callable[[Output], object]) -> Awaitable[None]:
        """Send a request to the engine immediately; `receive` is called with each output.

        The awaitable raises what `EngineMaster.submit` raises. The caller must call `release` in every case.
        """

    @abc.abstractmethod
    def release(self, request_id: str, ended_as: str | None) -> None:
        """Forget a request and cancel it if it is unfinished.

        `ended_as` is the finish reason in the metrics of an unfinished request: "stop", "abort", or None (not counted)
        for a refused request.
        """

    @abc.abstractmethod
    def note_response(self, route: str, status: int) -> None:
        """Count an HTTP response in the metrics. `route`: path with names for its parameters."""

    @abc.abstractmethod
    async def metrics(self) -> bytes:
        """Return the metrics in Prometheus' text format."""
