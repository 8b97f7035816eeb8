"""`LiveRequests`: the accepted requests that have not ended."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping

from orca_protos import engine_pb2 as pb

from orca_master.engine.admission import Admission
from orca_master.engine.choice_groups import ChoiceGroups
from orca_master.engine.iteration_message import check_encodes, check_tokens_encode
from orca_master.engine.messages import EngineObserver, Output, Submission
from orca_master.engine.same_weights import replaced
from orca_master.errors import RequestError
from orca_master.scheduling.batch import Batch
from orca_master.scheduling.drafter import Drafter
from orca_master.scheduling.kv_ledger import most_cached
from orca_master.scheduling.model_drafts import Guesses, ModelDrafts
from orca_master.scheduling.prompt_lookup import PromptLookup
from orca_master.scheduling.request import FinishReason, Request, ServiceClass
from orca_master.scheduling.scheduler import Scheduler

logger = logging.getLogger(__name__)

CHOICES_SECONDS = 60.0
"""Bound of the time from the first to the last choice of a request: an API process that is stopped sends no more."""


class LiveRequests:
    """Waiting and admitted requests of `scheduler`, by id. `deliver` receives the errors that end requests.

    `admission` refuses new requests, and learns from those that end; `observer` learns of first tokens. `check` raises
    RequestError for a request that fits no pipeline that serves or is expected back. `on_overdue` is called when
    requests have ended because not all of their choices arrived.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        admission: Admission,
        check: Callable[[Request], None],
        deliver: Callable[[list[Output]], None],
        observer: EngineObserver,
        on_overdue: Callable[[], None],
    ) -> None:
        self._scheduler = scheduler
        self._admission = admission
        self._check = check
        self._deliver = deliver
        self._observer = observer
        self._on_overdue = on_overdue
        self._requests: dict[str, Request] = {}
        self._incomplete = ChoiceGroups(scheduler.pool)
        self._num_arrived = 0
        self._guesses = Guesses()

    def __len__(self) -> int:
        return len(self._requests)

    @property
    def oldest(self) -> float:
        """Arrival of the oldest request, in seconds of the monotonic clock; infinite without requests."""
        return next((request.arrived_at for request in self._requests.values()), math.inf)

    def __iter__(self) -> Iterator[Request]:
        return iter(list(self._requests.values()))

    def adapters(self) -> set[int]:
        """Return the numbers of the adapters that the requests use; 0 stands for the model."""
        return {request.adapter for request in (*self._incomplete, *self._requests.values())}

    def accept(self, submission: Submission) -> Request:
        """Add a request to the pool; one of several choices when the last of them has arrived (choice_groups.py).

        Returns the request. The expected wait of the first choice decides about all. Resumed requests, and those of
        batches, bypass the bounds of the pool and of the expected wait. Raises what `check` raises, QueueFullError, or
        RequestError if the request cannot be encoded.
        """
        request = Request(
            submission.request_id,
            self._num_arrived,
            submission.prompt,
            submission.max_gen_tokens,
            submission.sampling,
            submission.stop_token_ids,
            submission.priority,
            submission.service_class,
            time.monotonic(),
            generated=list(submission.generated or ()),
            cache_salt=submission.cache_salt,
            constraint=submission.constraint,
            thinking=submission.thinking,
            pooling=submission.pooling,
            adapter=submission.adapter,
        )
        # The log probabilities of a resumed request's prompt came with its first token.
        if submission.generated or submission.pooling == "last":
            request.num_positions_read = len(request.prompt) - 1
        if submission.choices is not None and submission.generated is None:
            self._incomplete.share_prompt(request, submission.choices)
        check_encodes(request)
        self._check(request)
        if not request.checked_vocabulary:  # otherwise the tokens have been compared with its size
            check_tokens_encode(request)
        request.drafter = self._drafter(submission)
        request.num_expected_cached = most_cached(self._scheduler.ledgers, request)
        waiting, choices = [request], submission.choices
        if submission.generated is not None or submission.service_class is ServiceClass.BATCH:
            self._scheduler.pool.put_back(request)
        elif choices is None:
            self._admission.check(request)
            self._scheduler.pool.add(request)
        else:
            if is_first := choices not in self._incomplete:
                self._admission.check(request)
            waiting = self._incomplete.add(request, choices)
            if is_first:
                asyncio.get_running_loop().call_later(CHOICES_SECONDS, self._fail_overdue)
        self._num_arrived += 1
        self._requests.update((entry.request_id, entry) for entry in waiting)
        return request

    def cancel(self, request_id: str) -> bool:
        """Cancel a request; return False if nothing has changed: it has ended.

        A choice that is cancelled before the last of its request has arrived takes the others with it.
        """
        if self._incomplete.discard(request_id):
            return True
        request = self._requests.pop(request_id, None)
        if request is not None:
            self._note_end(request)
            self._scheduler.cancel(request)
        return request is not None

    def commit(self, batch: Batch, result: pb.IterationResult) -> list[Output]:
        """Record the result of an iteration and return its tokens; remove the requests that end with it."""
        now = time.monotonic()
        outputs = []
        logprobs = {entry.index: entry for entry in result.logprobs}
        of_prompts = self._commit_prompts(batch, result) if result.prompt else {}
        embeddings = self._commit_pooled(batch, result)
        progressed = self._scheduler.commit(batch, list(result.token))
        self._receive_drafts(batch, result)
        last = {request: index for index, request in progressed}
        num_accepted = len(progressed) - len(last)
        self._admission.expected_wait.note_returned(batch, now, num_accepted, result.drafting_ns / 1e9)
        if result.num_caught_up:
            self._admission.expected_wait.draft_costs.note_drafting(batch.pipeline, result)
        if num_drafts := sum(bool(entry.draft) for entry in batch.requests):
            num_tokens = sum(len(entry.draft) for entry in batch.requests)
            self._observer.on_drafts(num_drafts, num_tokens, num_accepted)
        for index, request in progressed:
            is_first = len(request.generated) == 1
            if is_first and request.service_class is ServiceClass.INTERACTIVE:
                self._admission.note_first_token(request, now)
                self._observer.on_first_token(request.admitted_at - request.arrived_at, now - request.admitted_at)
            reason = request.finish_reason if index == last[request] else None
            num_cached = request.num_cached if is_first else 0
            # The only other reasons are those of a complete answer.
            error = request.constraint.error if reason is FinishReason.CONSTRAINT and request.constraint else None
            of_prompt = of_prompts.pop(request.request_id, None)
            of_token = logprobs.get(index)
            token = result.token[index]
            outputs.append(Output(request.request_id, token, reason, error, of_token, num_cached, of_prompt))
            if reason is not None:
                self._note_end(request)
                del self._requests[request.request_id]
        outputs += [Output(name, None, None, prompt_logprobs=entry) for name, entry in of_prompts.items()]
        for request, pooled in embeddings:
            reason = request.finish_reason
            num_cached = 0 if reason is None else request.num_cached
            outputs.append(Output(request.request_id, None, reason, num_cached=num_cached, pooled=pooled))
            if reason is not None:
                self._note_end(request)
                del self._requests[request.request_id]
        return outputs

    def _commit_prompts(self, batch: Batch, result: pb.IterationResult) -> dict[str, pb.PromptLogprobs]:
        """Count the log probabilities of prompts that a result has; return them by request, without stale ones."""
        of_prompts = {}
        entries = batch.entries
        for entry in result.prompt:
            scheduled = entries[entry.index]
            if scheduled.is_stale:
                continue
            if len(entry.logprob) != len(scheduled.prompt_positions):
                raise ValueError(f"the engine returned {len(entry.logprob)} log probabilities of a prompt for {batch}")
            if entry.logprob:
                scheduled.request.num_positions_read += len(entry.logprob)
                of_prompts[scheduled.request.request_id] = entry
        return of_prompts

    def _receive_drafts(self, batch: Batch, result: pb.IterationResult) -> None:
        """Pass the drafts of a committed result to their requests."""
        entries = batch.entries if result.drafted else []
        for drafted in result.drafted:
            scheduled = entries[drafted.index]
            if len(drafted.token) > scheduled.num_drafts or scheduled.request.drafter is None:
                raise ValueError(f"the engine drafted {len(drafted.token)} tokens for {batch}")
            if not scheduled.is_stale:
                scheduled.request.drafter.receive(drafted.token)

    def _commit_pooled(self, batch: Batch, result: pb.IterationResult) -> list[tuple[Request, bytes]]:
        """Count the positions of embeddings that a result has; return the sums of their activations."""
        sums = {entry.index: entry.sum for entry in result.pooled}
        pooled = []
        for index, scheduled in enumerate(batch.entries):
            if scheduled.request.pooling is None or scheduled.is_stale:
                continue
            if positions := scheduled.prompt_positions:
                if not sums.get(index):
                    raise ValueError(f"the engine returned no activations for {batch}")
                scheduled.request.num_positions_read = positions.stop
                pooled.append((scheduled.request, sums[index]))
        return pooled

    def refuse_misfits(self) -> None:
        """Fail the waiting requests for which `check` raises RequestError."""
        for request in [*self._incomplete, *self._scheduler.pool]:
            try:
                self._check(request)
            except RequestError as error:
                self._fail([request], str(error))

    def fail_alone(self, request: Request, cause: str) -> None:
        """Fail a live request on which workers failed while nothing else was computed."""
        message = f"request {request.request_id}: workers failed on it again and again, at last alone: {cause}"
        self._fail([request], message, FinishReason.FAULT)

    def fail_constrained(self, request: Request, error: str) -> None:
        """Fail a live request whose grammar allows no next token."""
        self._fail([request], error, FinishReason.CONSTRAINT)

    def fail_begun(self, changed: Mapping[int, str]) -> None:
        """Fail the requests that have results of weights that no pipeline has any more; `changed`: see `changes`.

        The rest of an answer would be that of another model. Requests without results begin with the new weights.
        """
        for what in filter(None, dict.fromkeys(changed.values())):
            users = [request for request in self._requests.values() if changed.get(request.adapter, changed[0]) == what]
            begun = [request for request in users if request.has_results]
            if begun:
                text = "the pipelines have other weights than before (%s): of %d requests the %d with results end"
                logger.warning(text, what, len(users), len(begun))
                self._fail(begun, replaced(what))

    def fail_adapter(self, number: int, reason: str) -> None:
        """Fail the requests that use an adapter, with `reason` as the error."""
        users = [*self._incomplete, *self._requests.values()]
        self._fail([request for request in users if request.adapter == number], reason)

    def fail_all(self, reason: str) -> None:
        """Fail all requests with `reason` as the error."""
        self._fail([*self._incomplete, *self._requests.values()], reason)

    def _drafter(self, submission: Submission) -> Drafter | None:
        """Return what drafts a request's tokens; None if tokens before change which ones it may sample."""
        config = self._scheduler.config
        if not config.speculative_tokens or submission.constraint is not None:
            return None
        if submission.sampling.reads_history or submission.sampling.is_masked or submission.pooling is not None:
            return None
        if config.has_draft_model:
            num_generated = len(submission.generated or ())
            return ModelDrafts(self._guesses, len(submission.prompt) + num_generated, num_generated)
        return PromptLookup(submission.prompt, submission.generated or ())

    def _note_end(self, request: Request) -> None:
        self._admission.expected_wait.note_end(request)
        if request.drafter is not None and request.generated:
            request.drafter.note_end()

    def _fail_overdue(self) -> None:
        """Fail the choices of requests that are incomplete after CHOICES_SECONDS, and free the places of all."""
        if overdue := self._incomplete.overdue(time.monotonic() - CHOICES_SECONDS):
            self._fail(overdue, f"not all choices of the request arrived within {CHOICES_SECONDS:g} s")
            self._on_overdue()

    def _fail(self, requests: list[Request], message: str, reason: FinishReason = FinishReason.ERROR) -> None:
        self._deliver([Output(request.request_id, None, reason, message) for request in requests])
        for request in requests:
            self._incomplete.discard(request.request_id)
            if self._requests.pop(request.request_id, None) is not None:
                self._scheduler.cancel(request, reason)
