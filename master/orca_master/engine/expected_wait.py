"""`ExpectedWait`: how long a new request waits for its first iteration, from measured rates. It has no clock.

    expected wait = (known tokens x cost of a prompt's token + expected answers x cost of a generated token) / pipelines

The tokens are those of the requests ahead (backlog.py), the costs are measured (token_costs.py), the expected answers
follow from the lengths of the last ones (answer_lengths.py). If requests wait for the end of others, their wait also
depends on how far those are: after a burst all are young, and none ends soon. So the expected rest of the running
answers counts as far as it differs from its mean over the time that such an answer runs.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from orca_master.engine.answer_lengths import AnswerLengths
from orca_master.engine.measured_draft_costs import MeasuredDraftCosts
from orca_master.engine.token_costs import TokenCosts
from orca_master.scheduling.backlog import backlog, is_crowded, leaves_behind
from orca_master.scheduling.batch import Batch, ScheduledRequest
from orca_master.scheduling.prompt_budget import PromptBudget
from orca_master.scheduling.request import Request, ServiceClass
from orca_master.scheduling.scheduler import Scheduler

LATEST_ITERATIONS = 4
"""The shortest of so many without prompts is expected again: a mean follows too slowly when a batch becomes smaller."""


class _Iteration(NamedTuple):
    """An iteration in flight. `crowded`: all places or blocks were taken; `limited`: requests had to wait."""

    sent_at: float
    crowded: bool
    limited: bool


@dataclass(slots=True)
class _Sent:
    """The iterations in flight of one pipeline."""

    iterations: deque[_Iteration] = field(default_factory=deque)
    returned_at: float = 0.0
    """Time of the last result."""
    plain: deque[float] = field(default_factory=lambda: deque(maxlen=LATEST_ITERATIONS))
    """Seconds of the latest iterations without prompts."""


class ExpectedWait:
    """Measures iterations and ends of requests of `scheduler`, and estimates waits. All times in seconds."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._costs = TokenCosts()
        self.draft_costs = MeasuredDraftCosts(scheduler.config.looks_ahead)
        """By the same iterations."""
        self._lengths = AnswerLengths()
        self._sent: dict[str, _Sent] = {}

    def note_sent(self, batch: Batch, now: float) -> None:
        """Note an iteration; call it after the scheduler's dispatch, before requests are added."""
        crowded = is_crowded(self._scheduler)
        limited = crowded or leaves_behind(self._scheduler, batch)
        self._sent.setdefault(batch.pipeline, _Sent()).iterations.append(_Iteration(now, crowded, limited))

    def note_returned(self, batch: Batch, now: float, num_accepted: int = 0, drafting: float = 0.0) -> None:
        """Note the result of the pipeline's oldest iteration, with so many drafted tokens that are part of an answer.

        `drafting`: seconds that the draft model took.
        Ignore a result that comes after the pipeline's loss.
        """
        sent = self._sent.get(batch.pipeline)
        if sent is None:
            return
        iteration = sent.iterations.popleft()
        seconds = now - max(iteration.sent_at, sent.returned_at)
        sent.returned_at = now
        prompt = _num_prompt_tokens(batch)
        generated = num_accepted + sum(entry.samples for entry in batch.requests)
        answers = any(entry.request.pooling is None for entry in batch.requests)
        places = 0 if iteration.crowded else self._scheduler.config.batch_size
        self._costs.note(seconds, prompt, generated, iteration.limited, answers, places)
        if not prompt:
            sent.plain.append(seconds)
            self.draft_costs.note_rows(seconds - drafting, sum(entry.num_sampled for entry in batch.requests))
        self._lengths.note_iteration()

    def expected_time(self, batch: Batch) -> tuple[float, float]:
        """Return when a pipeline's only iteration in flight began, and how many seconds it is expected to take.

        0 seconds before the pipeline's first measurement.
        """
        sent = self._sent[batch.pipeline]
        begun = max(sent.iterations[0].sent_at, sent.returned_at)
        if not sent.plain:
            return begun, 0.0
        return begun, self._costs.iteration_seconds(min(sent.plain), _num_prompt_tokens(batch))

    def note_lost(self, pipeline: str) -> None:
        """Forget the iterations in flight of a lost pipeline."""
        self._sent.pop(pipeline, None)
        self.draft_costs.note_lost(pipeline)

    def note_end(self, request: Request) -> None:
        """Note the end of an interactive request, also of a cancelled one; without a token it says nothing.

        Answers of batches may have quite other lengths than those for which new requests wait.
        """
        if request.service_class is ServiceClass.INTERACTIVE:
            self._lengths.note_end(request, self._scheduler.admitted)

    def prompt_budget(self, seconds: float) -> PromptBudget | None:
        """Return the tokens of prompts of an iteration of `seconds` beside answers, None before costs are known."""
        within = self._costs.prompt_tokens_within(seconds)
        return None if within is None else PromptBudget(within, enough=self._costs.enough_prompt_tokens())

    def even_prompt_budget(self) -> PromptBudget | None:
        """Return the tokens of prompts of iterations that take equally long, None before costs are known."""
        return self._costs.even_prompt_budget(self._scheduler.config.batch_size)

    def seconds(self, request: Request | None = None) -> float:
        """Return the wait of a new interactive request, None for one behind all others that are interactive.

        0 while no request waits ahead, and before the first measurement. Before the first token of an answer, answers
        are expected to have none: the pool's bounds in counts limit the queue until then.
        """
        costs = self._costs.costs
        if costs is None or not self._scheduler.pool.num_interactive:
            return 0.0
        ahead = backlog(self._scheduler, request)
        answers = 0.0
        if ahead.left and (curve := self._lengths.curve(self._scheduler.admitted)) is not None:
            answers = sum(count * curve.expected(left / count) for count, left in ahead.left)
            answers += sum(
                curve.expected_rest(length, most) - curve.expected_rest_at_any_time(most)
                for length, most in ahead.running
            )
        return (ahead.known * costs.prompt + max(0.0, answers) * costs.generated) / max(1, len(self._scheduler.ledgers))


def _num_prompt_tokens(batch: Batch) -> int:
    return sum(entry.num_tokens for entry in batch.requests if not _is_increment(entry))


def _is_increment(entry: ScheduledRequest) -> bool:
    """Return True for the last token of an answer that is continued, not for a part of a prompt, however short."""
    return entry.samples and entry.num_tokens == 1 and not entry.admitted
