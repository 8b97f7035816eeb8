"""`Request`: the state of one request on the master.

The master holds every token; the K/V cache on the workers is only a cache (docs/architecture.md,
section 1). The token lists suffice to rebuild the state of any worker: `rewind()` resets the computed
tokens, and the next initiation phase runs over prompt and generated tokens together.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field

from orca_contract.model_choices import Pooling

from orca_master.scheduling.constraint import Constraint
from orca_master.scheduling.drafter import Drafter
from orca_master.scheduling.sampling_parameters import SamplingParameters
from orca_master.scheduling.thinking import Thinking

LOSSES_BEFORE_ALONE = 2
"""Losses in a row, without a token between them, after which a request runs alone (docs/architecture.md, section 3)."""


class RequestState(enum.Enum):
    """States of Algorithm 1, and FINISHED for requests that have ended."""

    INITIATION = "initiation"
    RUNNING = "running"
    INCREMENT = "increment"
    FINISHED = "finished"


class ServiceClass(enum.IntEnum):
    """Whom a request keeps waiting; the smaller class goes first under every policy (policies.py)."""

    INTERACTIVE = 0
    BATCH = 1
    """A line of a batch (/v1/batches): admitted only while no interactive request waits."""


class FinishReason(enum.Enum):
    """Why a request ended; the first two are OpenAI's.

    ERROR: the engine failed; FAULT: it failed on this request. CONSTRAINT: the request's constraint has an error.
    """

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
    ERROR = "error"
    FAULT = "fault"
    CONSTRAINT = "constraint"


@dataclass(slots=True, eq=False)
class Request:
    """One request, waiting or admitted.

    `arrival` is the position in the order of arrival, unique in a pool. `max_gen_tokens` is at least 1, and 0 for
    an embedding, which ends when its prompt is computed.
    Generation ends at a token of `stop_token_ids` (kept as the last generated token), when the grammar is complete, or
    after `max_gen_tokens`.
    """

    request_id: str
    arrival: int
    prompt: Sequence[int]
    max_gen_tokens: int
    sampling: SamplingParameters = field(default_factory=SamplingParameters)
    stop_token_ids: frozenset[int] = frozenset()
    priority: int = 0
    """Smaller is more urgent; only the policy `priority` reads it."""
    service_class: ServiceClass = ServiceClass.INTERACTIVE
    arrived_at: float = 0.0
    """Seconds of the monotonic clock."""
    admitted_at: float = 0.0
    """Time at which the first iteration was sent, in seconds of the monotonic clock."""
    expected_wait: float = 0.0
    """Expected wait for the first iteration at the arrival, in seconds; 0: not estimated."""
    expected_under: int = 0
    """`Scheduler.num_pipeline_changes` at that time; later changes were not expected."""
    state: RequestState = RequestState.INITIATION
    generated: list[int] = field(default_factory=list)
    num_computed: int = 0
    """Tokens whose keys and values the workers hold."""
    num_tokens_in_flight: int = 0
    """Tokens in the iterations in flight."""
    incarnation: int = 0
    """Rises when in-flight work becomes stale; a result of an older incarnation is ignored."""
    num_preemptions: int = 0
    pipeline: str = ""
    """Id of the pipeline that admitted the request last, "" before."""
    num_losses: int = 0
    """Losses of pipelines that count against this request (losses.py), since its last token."""
    awaits_cause: bool = False
    """True while the request is not admitted, because causes of losses are not known yet (losses.py)."""
    finish_reason: FinishReason | None = None
    cache_salt: str = ""
    """Only requests with the same salt share K/V blocks (prefix_cache.py)."""
    constraint: Constraint | None = None
    """The state of `generated` in the request's grammar, None without one."""
    thinking: Thinking | None = None
    """The reasoning in `generated`, None without a limit of its tokens."""
    drafter: Drafter | None = None
    """Drafts the next tokens (speculation.py), None if none are to be computed."""
    block_keys: list[bytes] = field(default_factory=list)
    """Keys of the first blocks, as far as they were needed."""
    num_cached: int = 0
    """Prompt tokens in blocks that the request shared at its first admission: computed before, or by its iteration."""
    pooling: Pooling | None = None
    """Of an embedding; None: tokens are generated."""
    adapter: int = 0
    """Number of the model's adapter, from 1; 0: none."""
    num_positions_read: int = 0
    """First positions of the prompt whose results have returned, or are not wanted (`num_positions`)."""
    checked_vocabulary: int = 0
    """Size of the vocabulary for which the request's values have been checked (request_limits.py)."""
    checked_prompt: int = 0
    """Size of the vocabulary for which the prompt has been checked as that of another choice; 0: it has not."""
    num_expected_cached: int = 0
    """Prompt tokens in the prefix cache of some pipeline at the arrival; the expected wait does not count them."""

    @property
    def max_tokens(self) -> int:
        """Algorithm 1's `max_tokens`: input tokens plus `max_gen_tokens`."""
        return len(self.prompt) + self.max_gen_tokens

    @property
    def num_tokens(self) -> int:
        """Number of known tokens, prompt and generated."""
        return len(self.prompt) + len(self.generated)

    @property
    def num_uncomputed(self) -> int:
        """Number of known tokens without keys and values: at first the whole prompt, 1 in the increment phase."""
        return self.num_tokens - self.num_computed

    @property
    def num_scheduled(self) -> int:
        """Number of computed tokens once all iterations in flight have returned."""
        return self.num_computed + self.num_tokens_in_flight

    @property
    def num_unscheduled(self) -> int:
        """Number of known tokens that no iteration so far computes."""
        # Read for each request and iteration: calls of the properties above would take most of the time.
        return len(self.prompt) + len(self.generated) - self.num_computed - self.num_tokens_in_flight

    @property
    def is_answering(self) -> bool:
        """True if an admitted request has at most one known token left to compute, from which the next one follows."""
        return self.pooling is None and self.state is not RequestState.INITIATION and self.num_unscheduled <= 1

    @property
    def num_positions(self) -> int:
        """Number of first positions of the prompt with results: activations, or the next token's log probability."""
        if self.pooling is not None:
            return len(self.prompt)
        return 0 if self.sampling.prompt_logprobs is None else len(self.prompt) - 1

    @property
    def awaits_positions(self) -> bool:
        """True if results of the prompt's positions are requested and have not all returned."""
        return self.num_positions_read < self.num_positions

    @property
    def awaits_prompt_logprobs(self) -> bool:
        """True if these results are log probabilities of the prompt's tokens."""
        return self.pooling is None and self.awaits_positions

    @property
    def has_results(self) -> bool:
        """True if tokens, or results of the prompt's positions, have returned."""
        return bool(self.generated) or (self.pooling != "last" and self.num_positions_read > 0)

    @property
    def num_expected(self) -> int:
        """Number of known tokens that the next admission is expected to compute."""
        return self.num_tokens - self.num_expected_cached

    @property
    def num_left(self) -> int:
        """Number of tokens that may still be generated."""
        return self.max_gen_tokens - len(self.generated)

    @property
    def runs_alone(self) -> bool:
        """True if the request may have caused losses, and must show it by a token of its own."""
        return self.num_losses >= LOSSES_BEFORE_ALONE

    @property
    def reads_history(self) -> bool:
        """True if workers need the tokens of blocks that the request shares."""
        return self.sampling.reads_history or (self.drafter is not None and self.drafter.reads_history)

    @property
    def num_free(self) -> int:
        """Number of next tokens that may be generated, and that are not forced as the end of a reasoning."""
        free = None if self.thinking is None else self.thinking.num_free
        return self.num_left if free is None else min(self.num_left, free)

    def is_masked_at(self, place: int) -> bool:
        """Return True if the master may limit the token of the answer at `place`, from 0 (engine/token_masks.py)."""
        if self.constraint is not None or self.sampling.is_masked:
            return True
        free = None if self.thinking is None else self.thinking.num_free
        return free is not None and place >= len(self.generated) + free

    @property
    def masks_ends(self) -> bool:
        """True if masks ban the ends of the answer before `min_tokens`, because workers could leave no other token."""
        return self.constraint is not None or bool(self.sampling.allowed_token_ids)

    def tokens(self, start: int, count: int) -> list[int]:
        """Return up to `count` known tokens from position `start` on."""
        prompt_length = len(self.prompt)
        if start >= prompt_length:
            return self.generated[start - prompt_length : start - prompt_length + count]
        head = list(self.prompt[start : start + count])
        return head + self.generated[: count - len(head)]

    def begin(self, num_cached: int) -> None:
        """Begin a pass over all known tokens, of which the workers hold the first `num_cached`."""
        self.num_computed = num_cached
        if not self.incarnation:
            self.num_cached = num_cached

    def append(self, token: int) -> None:
        """Append a sampled token and set `finish_reason` if the token is the last."""
        self.generated.append(token)
        self.num_losses = 0
        if self.constraint is not None:
            self.constraint.accept(token)
        if self.thinking is not None:
            self.thinking.accept(token)
        if self.drafter is not None:
            self.drafter.append(token)
        if token in self.stop_token_ids:
            self.finish_reason = FinishReason.STOP
        elif self.constraint is not None and self.constraint.error:
            self.finish_reason = FinishReason.CONSTRAINT
        elif self.constraint is not None and self.constraint.is_complete:
            self.finish_reason = FinishReason.STOP
        elif len(self.generated) == self.max_gen_tokens:
            self.finish_reason = FinishReason.LENGTH

    def rewind(self) -> None:
        """Return to INITIATION and keep all tokens; in-flight work becomes stale."""
        self.state = RequestState.INITIATION
        self.num_computed = self.num_tokens_in_flight = 0
        if self.drafter is not None:
            self.drafter.rewind(self.num_tokens)
        self.incarnation += 1

    def finish(self, reason: FinishReason) -> None:
        """Set the state FINISHED; in-flight work becomes stale."""
        self.state = RequestState.FINISHED
        self.finish_reason = reason
        self.incarnation += 1
