"""`RequestStream`: the outputs of one request on their way to its receiver, and what the metrics learn of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from orca_master.engine.messages import Output, RequestMetrics, Submission
from orca_master.scheduling.request import ServiceClass


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
    first: float = 0.0
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
        return cls(receive, num_tokens, submission.arrived, submission.service_class, len(before or ()), is_resumed)

    def note_token(self, metrics: RequestMetrics, now: float) -> None:
        """Count a token, and its times if the request is interactive and began with this master."""
        self.num_generated += 1
        if self.service_class is ServiceClass.BATCH or self.is_resumed:
            metrics.on_untimed_token(self.num_prompt_tokens, self.num_generated)
            return
        if self.num_generated == 1:
            self.first = now
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
