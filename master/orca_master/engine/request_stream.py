"""`RequestStream`: the outputs of one request on their way to its receiver, and what metrics and traces learn."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from orca_master.engine.messages import Output, RequestMetrics, Submission
from orca_master.scheduling.request import Request, ServiceClass


@dataclass(slots=True)
class RequestStream:
    """Output state of one request. Times in seconds of the monotonic clock."""

    receive: Callable[[Output], object]
    num_prompt_tokens: int
    arrived: float
    service_class: ServiceClass
    num_generated: int
    """Tokens of the answer so far, also those of an earlier master."""
    is_resumed: bool
    """True if an earlier master accepted the request, whose clock and first token nobody knows any more."""
    submission: Submission
    request: Request | None = None
    """The engine's own state of the request once it is accepted: traces read some of its numbers at the end."""
    first: float = 0.0
    """Time of the first token of this master, 0 before."""
    last: float = 0.0
    ended: bool = False
    counted: bool = False
    """True once the engine has the request, which waits for its grammar before."""
    submitting: asyncio.Task[None] | None = None
    """Compiles the request's grammar and submits the request."""

    @classmethod
    def of(cls, submission: Submission, receive: Callable[[Output], object]) -> RequestStream:
        """Return the stream of a request before its first output."""
        before = submission.generated
        num_tokens = len(submission.prompt)
        is_resumed = before is not None
        service_class, num_generated = submission.service_class, len(before or ())
        return cls(receive, num_tokens, submission.arrived, service_class, num_generated, is_resumed, submission)

    def note_token(self, metrics: RequestMetrics, now: float) -> None:
        """Count a token, and its times if the request is interactive and began with this master."""
        self.num_generated += 1
        if not self.first:
            self.first = now
        if self.service_class is ServiceClass.BATCH or self.is_resumed:
            metrics.on_untimed_token(self.num_prompt_tokens, self.num_generated)
            return
        metrics.on_token(self.num_prompt_tokens, self.num_generated, now - self.arrived, now - self.last)
        self.last = now

    def note_end(self, metrics: RequestMetrics, reason: str, now: float) -> None:
        """Count the end of the request."""
        if self.service_class is ServiceClass.BATCH:
            metrics.on_batch_finish(reason)
        elif self.is_resumed:
            metrics.on_resumed_finish(reason, self.num_prompt_tokens, self.num_generated)
        else:
            seconds, since_first = now - self.arrived, now - self.first
            metrics.on_finish(reason, self.num_prompt_tokens, self.num_generated, seconds, since_first)


class RequestTraces(Protocol):
    """The traces of requests. Called on the loop that created EngineThread, must not block."""

    def begin(self, stream: RequestStream) -> None:
        """Note a submitted request. `end` follows in every case."""

    def end(self, stream: RequestStream, reason: str | None, error: str, now: float) -> None:
        """Record the end of a request. `reason`: see RequestMetrics.on_finish, None for a refused request.

        `error`: why it failed, "" otherwise; `now`: in seconds of the monotonic clock.
        """

    async def close(self) -> None:
        """Send what has not been sent, within a bounded time."""
