"""Inputs and outputs of the engine master: submissions, outputs, and the protocols of its observers."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from orca_contract.model_choices import Pooling
from orca_protos import engine_pb2 as pb

from orca_master.scheduling.batch import Batch
from orca_master.scheduling.constraint import Constraint, Grammar
from orca_master.scheduling.request import FinishReason, ServiceClass
from orca_master.scheduling.sampling_parameters import SamplingParameters
from orca_master.scheduling.thinking import Thinking, ThinkingBudget


@dataclass(frozen=True, slots=True)
class Choices:
    """The choices of one client's request, of which each is a submission: the queue accepts all of them or none.

    `num_tokens`: prompts and answers of full length, of all choices together.
    """

    group_id: str
    count: int
    num_tokens: int


@dataclass(frozen=True, slots=True)
class Trace:
    """What the span of a client's request takes from the endpoint (metrics/request_traces.py).

    `request_id`: of the response; `model`: its name in the response; `n`: choices of each prompt in the response.
    `traceparent`, `tracestate`: the client's headers (W3C Trace Context), unchecked; "" without them.
    """

    request_id: str = ""
    model: str = ""
    n: int = 1
    traceparent: str = ""
    tracestate: str = ""


@dataclass(frozen=True, slots=True)
class Submission:
    """A request as submitted by the endpoint; the engine adds its place in the order of arrival.

    `generated`: for a request that an earlier master had accepted, its tokens, which are part of `max_gen_tokens`;
    `weights`: the identities of those that computed them (source and file_digest), None if nothing is known.
    `choices`: those of the client's request, None if this is the only one. `cache_salt`: see Request.
    `grammar`: what the answer must match; `constraint`: the compiled grammar, with the tokens of `generated`.
    `thinking_budget`: the most reasoning tokens; `thinking`: their tracker, with the tokens of `generated`.
    `pooling`: of an embedding, whose `max_gen_tokens` is 0. `adapter`: number of the model's adapter, 0 for none.
    `service_class`: BATCH bypasses the bounds of the queue; who submits such requests bounds their number.
    `arrived`: when the client's request arrived, before its texts were tokenized, in seconds of the monotonic clock,
    which all processes of a host share. The metrics begin there. `trace`: None for no span.
    """

    request_id: str
    prompt: Sequence[int]
    max_gen_tokens: int
    sampling: SamplingParameters
    stop_token_ids: frozenset[int]
    priority: int = 0
    generated: Sequence[int] | None = None
    weights: pb.ModelFacts | None = None
    choices: Choices | None = None
    cache_salt: str = ""
    grammar: Grammar | None = None
    constraint: Constraint | None = None
    pooling: Pooling | None = None
    adapter: int = 0
    service_class: ServiceClass = ServiceClass.INTERACTIVE
    arrived: float = field(default_factory=time.monotonic)
    thinking_budget: ThinkingBudget | None = None
    thinking: Thinking | None = None
    trace: Trace | None = None


class Output(NamedTuple):
    """One sampled token of a request, its end, or a part of its prompt. A tuple, because one is created per token.

    `num_cached`: with the first token, the prompt's tokens that the prefix cache had. `prompt_logprobs`: those of the
    next tokens of the prompt, from its second token on; all come before the first token, or with it. `pooled`: of an
    embedding, the sum of the next tokens' activations, float32 in little-endian order; the last comes with the end.
    """

    request_id: str
    token: int | None
    finish_reason: FinishReason | None
    error: str | None = None
    logprobs: pb.Logprobs | None = None
    num_cached: int = 0
    prompt_logprobs: pb.PromptLogprobs | None = None
    pooled: bytes | None = None


class EngineObserver(Protocol):
    """Callbacks for metrics and logs. Called on the engine's loop, must not block."""

    def on_dispatch(self, sequence: int, batch: Batch) -> None:
        """Record an iteration that was sent."""

    def on_preemption(self, count: int) -> None:
        """Record the number of requests preempted by an iteration."""

    def on_drafts(self, num_drafts: int, num_tokens: int, num_accepted: int) -> None:
        """Record the drafts of an iteration that returned, their tokens, and how many of them are part of an answer."""

    def on_first_token(self, queue_seconds: float, prefill_seconds: float) -> None:
        """Record an interactive request's time in the queue, and that from its first iteration to its first token."""

    def on_timing(self, pipeline: str, timing: pb.StageTiming) -> None:
        """Record the timings of an iteration on one partition."""


class RequestMetrics(Protocol):
    """Request metrics. Called on the loop that created EngineThread, must not block. Times in seconds."""

    def on_token(self, prompt_tokens: int, generated: int, since_arrival: float, since_last: float) -> None:
        """Record a generated token; `generated` is the number of generated tokens including this token."""

    def on_finish(
        self, reason: str, prompt_tokens: int, generated: int, seconds: float, since_first_token: float
    ) -> None:
        """Record the end of a request."""

    def on_untimed_token(self, prompt_tokens: int, generated: int) -> None:
        """Record a generated token of a batch, for which nobody waits, or of a resumed request, whose times are not
        known; `generated`: see `on_token`."""

    def on_batch_finish(self, reason: str) -> None:
        """Record the end of a request of a batch."""

    def on_resumed_finish(self, reason: str, prompt_tokens: int, generated: int) -> None:
        """Record the end of a request that an earlier master had accepted. `generated`: the tokens of all masters."""

    def on_grammar(self, result: str) -> None:
        """Record a request with a grammar that was "compiled", "cached" (compiled before) or "refused"."""

    def on_response(self, route: str, status: int) -> None:
        """Record an HTTP response of the endpoint. `route`: path with names for its parameters."""

    def render(self) -> bytes:
        """Return all metrics in Prometheus' text format."""


class Observers:
    """An observer that forwards each call to several observers."""

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

    def on_drafts(self, num_drafts: int, num_tokens: int, num_accepted: int) -> None:
        """See EngineObserver."""
        for observer in self._observers:
            observer.on_drafts(num_drafts, num_tokens, num_accepted)

    def on_first_token(self, queue_seconds: float, prefill_seconds: float) -> None:
        """See EngineObserver."""
        for observer in self._observers:
            observer.on_first_token(queue_seconds, prefill_seconds)

    def on_timing(self, pipeline: str, timing: pb.StageTiming) -> None:
        """See EngineObserver."""
        for observer in self._observers:
            observer.on_timing(pipeline, timing)
