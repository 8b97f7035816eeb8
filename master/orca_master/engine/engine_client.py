"""`EngineClient`: what the endpoint sees of an engine, which runs on another thread or in another process."""

from __future__ import annotations

import abc
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from orca_contract.state import EngineState

from orca_master.engine.messages import Output, Submission
from orca_master.engine.progress import Progress


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """What the engine is. The numbers are 0 until the model is loaded; lengths in tokens."""

    state: EngineState
    failure: str
    draining: bool
    vocabulary_size: int
    max_model_len: int
    num_slots: int
    progress: Progress
    max_queued_requests: int
    max_queued_tokens: int

    @property
    def unavailable(self) -> str:
        """Why requests are not taken now, "" if they are."""
        if self.draining:
            return "draining: the server is about to end"
        if self.serves:
            return self.progress.stall(time.monotonic())
        return f"{self.state.value}: {self.failure or 'the model is not there yet'}"

    @property
    def serves(self) -> bool:
        """Whether a pipeline claims to serve."""
        return self.state is EngineState.SERVING

    @property
    def longest(self) -> int:
        """Tokens that prompt and answer may have together."""
        return min(self.max_model_len, self.num_slots)


class EngineClient(abc.ABC):
    """An engine elsewhere; belongs to one event loop."""

    @property
    @abc.abstractmethod
    def status(self) -> EngineStatus:
        """What the engine is now."""

    @abc.abstractmethod
    def submit(self, submission: Submission, receive: Callable[[Output], object]) -> Awaitable[None]:
        """Hands a request over at once; each of its outputs goes to `receive`.

        The awaitable raises what `EngineMaster.submit` raises. `release` must follow, however it ends.
        """

    @abc.abstractmethod
    def release(self, request_id: str, ended_as: str | None) -> None:
        """Nobody waits for a request any more: what still runs of it is cancelled.

        `ended_as` is what the metrics say of one that had not ended: "stop", "abort", or None for one that was refused.
        """

    @abc.abstractmethod
    async def metrics(self) -> bytes:
        """Return the text exposition of the metrics."""
