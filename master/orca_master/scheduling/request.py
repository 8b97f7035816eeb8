"""`Request`: everything the master knows of one request, and the only place its state changes.

The master holds every token; the K/V cache on the workers is only a cache (docs/architecture.md,
section 1). From the token lists alone any worker's state can be rebuilt: `rewind()` forgets what was
computed, and the next initiation phase runs over prompt and generated tokens together.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field

from orca_master.scheduling.sampling_parameters import SamplingParameters


class RequestState(enum.Enum):
    """States of Algorithm 1, and FINISHED for those that have left the pool."""

    INITIATION = "initiation"
    RUNNING = "running"
    INCREMENT = "increment"
    FINISHED = "finished"


class FinishReason(enum.Enum):
    """Why a request ended; the first two are OpenAI's `finish_reason`."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
    ERROR = "error"


@dataclass(slots=True, eq=False)
class Request:
    """One request of the pool.

    `arrival` is its place in the order of arrival, unique in a pool. `max_gen_tokens` is at least 1.
    Generation ends at a token of `stop_token_ids` (kept as the last generated token) or at the limit.
    """

    request_id: str
    arrival: int
    prompt: Sequence[int]
    max_gen_tokens: int
    sampling: SamplingParameters = field(default_factory=SamplingParameters)
    stop_token_ids: frozenset[int] = frozenset()
    priority: int = 0
    """Smaller is more urgent; only the policy `priority` reads it."""
    arrived_at: float = 0.0
    """Seconds of the monotonic clock."""
    state: RequestState = RequestState.INITIATION
    generated: list[int] = field(default_factory=list)
    num_computed: int = 0
    """Slots filled: tokens whose keys and values the workers hold."""
    num_under_way: int = 0
    """Tokens of the iterations in flight."""
    incarnation: int = 0
    """Rises whenever running work becomes stale; a result for an older one is ignored."""
    finish_reason: FinishReason | None = None

    @property
    def max_tokens(self) -> int:
        """Algorithm 1's `max_tokens`: input tokens plus `max_gen_tokens`."""
        return len(self.prompt) + self.max_gen_tokens

    @property
    def num_tokens(self) -> int:
        """Tokens known so far: prompt and generated."""
        return len(self.prompt) + len(self.generated)

    @property
    def num_uncomputed(self) -> int:
        """Known tokens without keys and values: the whole prompt at first, one in the increment phase."""
        return self.num_tokens - self.num_computed

    @property
    def num_scheduled(self) -> int:
        """Slots filled once all iterations in flight are through."""
        return self.num_computed + self.num_under_way

    @property
    def num_left(self) -> int:
        """Tokens that may still be generated."""
        return self.max_gen_tokens - len(self.generated)

    def tokens(self, start: int, count: int) -> list[int]:
        """Return `count` tokens from position `start` on, without those that are not known yet."""
        prompt_length = len(self.prompt)
        if start >= prompt_length:
            return self.generated[start - prompt_length : start - prompt_length + count]
        head = list(self.prompt[start : start + count])
        return head + self.generated[: count - len(head)]

    def append(self, token: int) -> None:
        """Take a sampled token and set `finish_reason` if it is the last."""
        self.generated.append(token)
        if token in self.stop_token_ids:
            self.finish_reason = FinishReason.STOP
        elif len(self.generated) == self.max_gen_tokens:
            self.finish_reason = FinishReason.LENGTH

    def rewind(self) -> None:
        """Back to INITIATION with all tokens kept; work under way for it becomes stale."""
        self.state = RequestState.INITIATION
        self.num_computed = self.num_under_way = 0
        self.incarnation += 1

    def finish(self, reason: FinishReason) -> None:
        """Leaves the pool; work under way for it becomes stale."""
        self.state = RequestState.FINISHED
        self.finish_reason = reason
        self.incarnation += 1
