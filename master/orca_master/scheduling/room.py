"""`Room`: what is left of a pipeline while a batch is selected: K/V blocks, tokens, and blocks that can be shared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from orca_contract.kv_blocks import BLOCK_SIZE

from orca_master.scheduling.kv_ledger import KvLedger, blocks_for, shareable_blocks
from orca_master.scheduling.prefix_cache import block_keys
from orca_master.scheduling.request import Request, ServiceClass

MOST_HISTORY = 2**22
"""Most cached tokens that the message of an iteration repeats for sampling, unless a single request has more: 12 MiB of
the 64 that a message can have, for vocabularies of up to 2 million tokens."""

MOST_PROMPT_LOGPROBS = 2**16
"""Most prompt tokens of an iteration with log probabilities: 10 MiB of the 64 that its result can have, with 20 likely
tokens for each and vocabularies of up to 2 million tokens."""


@dataclass(frozen=True, slots=True)
class AdmissionCost:
    """What admitting a waiting request takes of a pipeline."""

    cached: Sequence[int]
    """Blocks of the prefix cache that the request shares."""
    num_shared_blocks: int
    """Number of these, and of those after them that the batch computes."""
    num_blocks: int
    """Free blocks that the request takes, also those of `cached` that nobody holds."""
    waits_for_prefix: bool = False
    """True if another request computes the next block after its part in flight: both need not compute the block."""
    num_history: int = 0
    """Cached tokens that the request's sampling or the draft model reads, and that its iteration's message repeats."""
    has_prompt_logprobs: bool = False
    """True if the iteration returns log probabilities of the request's prompt."""


@dataclass(slots=True)
class Room:
    """Free K/V blocks and remaining token budget (None: unlimited) of the batch being built."""

    ledger: KvLedger
    num_blocks: int
    num_tokens: int | None
    prompt_tokens: int | None = None
    """Remaining tokens of prompts (None: unlimited); answers do not count."""
    being_computed: frozenset[bytes] = frozenset()
    """Keys of blocks that admitted requests compute next, after their iterations in flight."""
    num_prompt_logprobs: int = 0
    """Remaining tokens of prompts with log probabilities."""
    enough: int | None = None
    """See PromptBudget."""
    preempted: list[Request] = field(default_factory=list)
    _held: Counter[int] = field(default_factory=Counter)
    """How many of the preempted requests hold each block."""
    _freed: set[int] = field(default_factory=set)
    """Blocks that only preempted requests hold."""
    _shared: set[int] = field(default_factory=set)
    """Blocks of the prefix cache that admitted requests of the batch share."""
    _computed: set[bytes] = field(default_factory=set)
    """Keys of the blocks that the batch computes."""
    _num_history: int = 0
    """Sum of `AdmissionCost.num_history` of the batch."""
    _num_in_prompts: int = 0
    """Tokens of prompts in the batch."""

    @classmethod
    def of(
        cls,
        ledger: KvLedger,
        token_budget: int | None = None,
        prompt_tokens: int | None = None,
        admitted: Iterable[Request] = (),
        enough: int | None = None,
    ) -> Room:
        """Return the room of an empty batch beside the `admitted` requests, of which some have tokens in flight."""
        prompts = (request for request in admitted if request.num_tokens_in_flight and request.num_unscheduled)
        being_computed = frozenset(key for key in map(ledger.next_key, prompts) if key is not None)
        return cls(
            ledger, ledger.num_free_blocks, token_budget, prompt_tokens, being_computed, MOST_PROMPT_LOGPROBS, enough
        )

    @property
    def is_full(self) -> bool:
        """True if no further token of a prompt fits."""
        return self.num_tokens == 0 or self.prompt_tokens == 0

    def can_continue(self, request: Request) -> bool:
        """Return True if a token of an admitted request fits though no token of some prompts does."""
        return request.is_answering or not (self.is_full or request.awaits_prompt_logprobs)

    def tokens_for(self, request: Request, start: int) -> int:
        """Return how many tokens of `request` from position `start` on fit into the batch."""
        fitting = request.num_tokens - start
        if self.num_tokens is not None:
            fitting = min(fitting, self.num_tokens)
        if request.is_answering:
            return fitting
        if self.prompt_tokens is not None:
            fitting = min(fitting, self.prompt_tokens)
        return min(fitting, self.num_prompt_logprobs) if request.awaits_prompt_logprobs else fitting

    def cost_of(self, request: Request) -> AdmissionCost:
        """Return the cost of a waiting request, whose shared blocks are cached or computed by the batch."""
        cache, num_blocks = self.ledger.prefix_cache, self.ledger.blocks_of(request)
        if cache is None:
            return AdmissionCost((), 0, num_blocks, has_prompt_logprobs=request.awaits_prompt_logprobs)
        cached = self.ledger.cached_blocks(request)
        count, most = len(cached), shareable_blocks(request)
        while self._computed and count < most and block_keys(request, count + 1)[count] in self._computed:
            count += 1
        free = cache.unused_among(cached)
        if self._freed:
            free |= self._freed.intersection(cached)
        num_free = len(free - self._shared)
        waits = (
            bool(self.being_computed) and count < most and block_keys(request, count + 1)[count] in self.being_computed
        )
        num_history = count * BLOCK_SIZE if request.reads_history else 0
        return AdmissionCost(
            cached, count, num_blocks - count + num_free, waits, num_history, request.awaits_prompt_logprobs
        )

    def can_admit(self, cost: AdmissionCost) -> bool:
        """Return True if a waiting request of this cost fits into the batch."""
        return not self.preempted and cost.num_blocks <= self.num_blocks and self._has_tokens_for(cost)

    def preempt_batches(self, request: Request, cost: AdmissionCost, admitted: Sequence[Request]) -> bool:
        """Preempt the last of the `admitted` requests, if they are of batches, for an interactive one that waits.

        Return True if the request fits then; otherwise nothing is preempted.
        """
        if request.service_class is not ServiceClass.INTERACTIVE or not self._has_tokens_for(cost):
            return False
        if any(victim.service_class is ServiceClass.INTERACTIVE for victim in self.preempted):
            return False
        victims, num_free = self._victims(
            cost.num_blocks, admitted, lambda victim: victim.service_class is ServiceClass.INTERACTIVE, cost.cached
        )
        if num_free < cost.num_blocks:
            return False
        self._preempt(victims, num_free)
        return True

    def _has_tokens_for(self, cost: AdmissionCost) -> bool:
        if self.is_full:
            return False
        if cost.has_prompt_logprobs and not self.num_prompt_logprobs:
            return False
        return not self._num_history or self._num_history + cost.num_history <= MOST_HISTORY

    def admit(self, cost: AdmissionCost) -> None:
        """Subtract the blocks of a request."""
        self.num_blocks -= cost.num_blocks
        self._num_history += cost.num_history
        self._shared.update(cost.cached)

    def grow(self, request: Request, num_blocks: int, admitted: Sequence[Request]) -> bool:
        """Subtract blocks of an admitted request; return False if they are not free and preemption frees too few.

        Preempts the last of the `admitted` requests behind `request`.
        """
        if num_blocks <= self.num_blocks:
            self.num_blocks -= num_blocks
            return True
        victims, num_free = self._victims(num_blocks, admitted, lambda victim: victim is request)
        if num_free < num_blocks:
            return False
        self._preempt(victims, num_free - num_blocks)
        return True

    def hold_draft(self, request: Request, draft: tuple[int, ...]) -> tuple[int, ...]:
        """Subtract the tokens of a draft after the last known token, and one block at most; return what fits of it.

        A request keeps the blocks of rejected tokens, which others may need.
        """
        fitting = draft[: self.hold_slots(request, request.num_tokens, len(draft))]
        if self.num_tokens is not None:
            self.num_tokens -= len(fitting)
        return fitting

    def hold_slots(self, request: Request, num_slots: int, more: int) -> int:
        """Subtract the blocks of up to `more` slots behind the first `num_slots`, one block at most; return how many.

        For the first `num_slots` an admitted request has blocks, or they are subtracted.
        """
        num_blocks = max(len(self.ledger.holding(request).blocks), blocks_for(num_slots))
        fitting = min(more, (num_blocks + min(1, self.num_blocks)) * BLOCK_SIZE - num_slots)
        self.num_blocks -= max(0, blocks_for(num_slots + fitting) - num_blocks)
        return fitting

    def compute(self, request: Request, start: int, num_tokens: int) -> None:
        """Subtract tokens of a request from position `start` on; later requests of the batch can share their blocks."""
        if self.num_tokens is not None:
            self.num_tokens -= num_tokens
        if not request.is_answering:
            self._compute_prompt(request, start + num_tokens, num_tokens)
        if num_tokens > 1 and request.awaits_prompt_logprobs:  # single ones, mostly of answers, need not be counted
            self.num_prompt_logprobs -= num_tokens
        first, end = start // BLOCK_SIZE, (start + num_tokens) // BLOCK_SIZE
        if self.ledger.prefix_cache is not None and first < end:
            self._computed.update(block_keys(request, end)[first:end])

    def _compute_prompt(self, request: Request, end: int, num_tokens: int) -> None:
        """Subtract tokens of a prompt, up to position `end`; all that are left behind the end of enough of them."""
        self._num_in_prompts += num_tokens
        if self.prompt_tokens is not None:
            self.prompt_tokens -= num_tokens
        is_first_token_due = end == request.num_tokens and request.pooling is None
        if self.enough is not None and is_first_token_due and self._num_in_prompts >= self.enough:
            self.prompt_tokens = 0

    def _victims(
        self,
        num_blocks: int,
        admitted: Sequence[Request],
        is_kept: Callable[[Request], bool],
        cached: Sequence[int] = (),
    ) -> tuple[list[Request], int]:
        """Return the preempted requests, with as many more as free `num_blocks` blocks, and the number of free blocks.

        These are the last of the `admitted` requests, behind the last one that `is_kept`; they may free too few.
        `cached`: blocks of theirs that are not free because the request that needs blocks shares them.
        """
        victims, num_free = list(self.preempted), self.num_blocks
        held, shared = self._held, self._shared
        for victim in reversed(admitted):
            if num_free >= num_blocks or is_kept(victim):
                break
            if victim in self.preempted:
                continue
            if len(victims) == len(self.preempted):  # copied only if there is a further victim: mostly there is none
                held, shared = self._held.copy(), self._shared.union(cached)
            victims.append(victim)
            num_free += len(self.ledger.count_freed(victim, held) - shared)
        return victims, num_free

    def _preempt(self, victims: list[Request], num_free: int) -> None:
        for victim in victims[len(self.preempted) :]:
            self._freed |= self.ledger.count_freed(victim, self._held)
        self.preempted, self.num_blocks = victims, num_free
