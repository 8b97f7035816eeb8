"""`ExpectedWait`: how long a new request waits for its first iteration, from measured rates. It has no clock.

    expected wait = (known tokens x cost of a prompt's token + expected answers x cost of a generated token) / pipelines

The tokens are those of the requests ahead (backlog.py), the costs are measured (token_costs.py). An answer is expected
to use the fraction of `max_gen_tokens` that the last requests have used, because many stop early. If requests wait for
the end of others, their wait also depends on how far those are: after a burst all are young, and none ends soon, so
the expected rest of the running answers counts as far as it differs from a half of each.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from orca_master.engine.token_costs import TokenCosts
from orca_master.scheduling.backlog import backlog, leaves_behind
from orca_master.scheduling.batch import Batch
from orca_master.scheduling.request import Request
from orca_master.scheduling.scheduler import Scheduler

MEMORY = 128
"""The weight of a request's end decreases by the factor e in so many ends."""
DOUBT = 8
"""At first the used fraction is 1, with the weight of so many ends: those that stop early end first."""


@dataclass(slots=True)
class _Sent:
    """The iterations in flight of one pipeline: when each was sent, and whether requests had to wait for it."""

    iterations: deque[tuple[float, bool]] = field(default_factory=deque)
    returned_at: float = 0.0
    """Time of the last result."""


class ExpectedWait:
    """Measures iterations and ends of requests of `scheduler`, and estimates waits. All times in seconds."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._costs = TokenCosts()
        self._sent: dict[str, _Sent] = {}
        self._used = self._allowed = 0.0
        """Generated tokens of ended requests and their `max_gen_tokens`, weighted by age."""

    def note_sent(self, batch: Batch, now: float) -> None:
        """Note an iteration; call it after the scheduler's dispatch, before requests are added."""
        self._sent.setdefault(batch.pipeline, _Sent()).iterations.append((now, leaves_behind(self._scheduler, batch)))

    def note_returned(self, batch: Batch, now: float) -> None:
        """Note the result of the pipeline's oldest iteration; ignore a result that comes after the pipeline's loss."""
        sent = self._sent.get(batch.pipeline)
        if sent is None:
            return
        sent_at, limited = sent.iterations.popleft()
        seconds = now - max(sent_at, sent.returned_at)
        sent.returned_at = now
        prompt = sum(entry.num_tokens for entry in batch.requests if entry.admitted or entry.num_tokens > 1)
        self._costs.note(seconds, prompt, sum(entry.samples for entry in batch.requests), limited)

    def note_lost(self, pipeline: str) -> None:
        """Forget the iterations in flight of a lost pipeline."""
        self._sent.pop(pipeline, None)

    def note_end(self, request: Request) -> None:
        """Note the end of a request, also of a cancelled one; without a token it says nothing."""
        if request.generated:
            weight = 1 - 1 / MEMORY
            if not self._allowed:
                self._used = self._allowed = float(DOUBT * request.max_gen_tokens)
            self._used = weight * self._used + len(request.generated)
            self._allowed = weight * self._allowed + request.max_gen_tokens

    def seconds(self, request: Request | None = None) -> float:
        """Return the wait of a new request, None for one behind all others.

        0 while no request waits ahead, and before the first measurement.
        """
        costs = self._costs.costs
        if costs is None or not len(self._scheduler.pool):
            return 0.0
        ahead = backlog(self._scheduler, request)
        used = self._used / self._allowed if self._allowed else 1.0
        rest = sum(max(0.0, used * allowed - generated) - used * allowed / 2 for generated, allowed in ahead.running)
        answers = max(0.0, used * ahead.left + rest)
        return (ahead.known * costs.prompt + answers * costs.generated) / max(1, len(self._scheduler.ledgers))
