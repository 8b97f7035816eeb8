"""`TokenMatcher`: an answer's tokens in its grammar, by llguidance; `MaskMaker`: the masks of several at once.

A matcher's state follows from the tokens alone. A request that is rewound keeps its matcher, because it keeps its
tokens; one that another master resumes gets a matcher to which all its tokens are appended, and so does one to which
the lexer's states do not suffice (compiled_grammar.py).

All requests of an iteration wait for its slowest mask. llguidance bounds only the size of its parser's state, within
which an ambiguous grammar takes half a second for each token. So each answer has a budget of processor time.
"""

from __future__ import annotations

import ctypes
import logging
import os
from array import array
from collections.abc import Iterable, Sequence
from time import perf_counter, thread_time
from typing import NamedTuple

from llguidance import LLExecutor

from orca_master.scheduling.allowed_tokens import NO_LIMIT, AllowedTokens
from orca_master.text.compiled_grammar import CompiledGrammar, is_used_up
from orca_master.text.json_spaces import MOST_SPACES

logger = logging.getLogger(__name__)

WORD_BITS = 32
MAX_THREADS = 4
"""Maximum number of threads that compute the masks of an iteration: masks are short work."""
SLOW_SECONDS = 0.02
"""Time for the masks of an iteration after which the next are computed one by one, to measure each."""
BUDGET_SECONDS = 0.5
"""Processor time that an answer can spend on its grammar at once."""
TOKENS_PER_RENEWAL = 64
"""Tokens of an answer after which it may get new states of the lexer again."""
SECONDS_PER_TOKEN = 0.005
"""Processor time that each token adds to the rest of the budget, some ten times what usual grammars need."""

NONE_ALLOWED = "allowed_token_ids: the grammar allows none of these tokens here: add those that can come next"
"""Error of an answer that no token can continue."""


class TokenMatcher:
    """The `Constraint` of a request. `error` is set when a limit is exceeded, or a token is refused.

    `ends` has the model's end-of-sequence tokens. llguidance knows the first; the others are allowed where it is.
    """

    def __init__(self, grammar: CompiledGrammar, ends: tuple[int, ...], tokens: Iterable[int] = ()) -> None:
        self.matcher = grammar.matcher()
        self.ends = ends
        self.error = ""
        self._grammar = grammar
        self._generation = grammar.generation
        self._tokens = array("I")
        self._num_spaces = 0
        """Characters of whitespace at the end of the answer."""
        self._num_at_renewal = -TOKENS_PER_RENEWAL
        self._seconds_left = BUDGET_SECONDS
        for token in tokens:
            self.accept(token)

    @property
    def is_complete(self) -> bool:
        """See Constraint."""
        return not self.error and self.matcher.is_stopped()

    def accept(self, token: int) -> None:
        """See Constraint."""
        known = self.ends[0] if token in self.ends else token
        begun = thread_time()
        self._tokens.append(known)
        if (spaces := self._grammar.spaces) is not None:
            self._num_spaces = spaces.after(known, self._num_spaces)
        if not self.error and not self.matcher.consume_token(known) and not self.renew():
            self.note_error()
        self.spend(thread_time() - begun - SECONDS_PER_TOKEN)

    def can_go_on(self, allowed: AllowedTokens, vocabulary_size: int) -> bool:
        """Return True if the next token can be one of `allowed`, or if the next mask will set an error."""
        mask = bytearray(_row_bytes(vocabulary_size))
        self.compute(ctypes.addressof(ctypes.c_char.from_buffer(mask)), len(mask))
        if self.matcher.is_error():
            return True
        _allow_all_ends(mask, 0, self.ends)
        return allowed.within(self.bounded(mask)) != bytes(len(mask))

    def compute(self, address: int, row_bytes: int) -> None:
        """Write the mask to an address, and take its processor time from the budget."""
        begun = thread_time()
        self.matcher.unsafe_compute_mask_ptr(address, row_bytes)
        self.spend(thread_time() - begun)

    def bounded(self, mask: bytearray) -> bytearray:
        """Return the answer's mask, without further whitespace if it has enough between two parts of JSON."""
        spaces = self._grammar.spaces
        return mask if spaces is None or self._num_spaces < MOST_SPACES else spaces.bounded(mask)

    def renew(self) -> bool:
        """Go on with own states of the lexer, and return True, if the states are used up and new ones suffice."""
        if not is_used_up(self.matcher) or len(self._tokens) - self._num_at_renewal < TOKENS_PER_RENEWAL:
            return False
        self._num_at_renewal = len(self._tokens)
        matcher = self._grammar.own_matcher(self, self._generation)
        if matcher is None or not matcher.consume_tokens(self._tokens.tolist()):
            return False
        self.matcher = matcher
        return True

    def spend(self, seconds: float) -> None:
        """Take processor time from the budget. `note_error` notices that it is spent: the last token needs no more."""
        self._seconds_left = min(BUDGET_SECONDS, self._seconds_left - seconds)

    def note_error(self, is_stuck: bool = False) -> None:
        """Set `error` if llguidance has given up, no time is left, or no token is allowed.

        The last may be because the vocabulary lacks a character.
        """
        if self.matcher.is_error():
            reason = self.matcher.get_error().partition("\n")[0]
            self.error = f"the grammar is too complex, or it allows no answer: {reason[:500]}"
        elif is_stuck:
            self.error = "the grammar allows no token of the model's vocabulary"
        elif self._seconds_left < 0:
            self.error = f"the grammar is too complex: its tokens take more than {SECONDS_PER_TOKEN:g} s each"


class TokenLimits(NamedTuple):
    """What limits one token beside a grammar: `allowed` always, each set of `banned` if it leaves another token.

    `forced`: the only token if it is allowed; None for any.
    """

    banned: Sequence[frozenset[int]] = ()
    allowed: AllowedTokens = NO_LIMIT
    forced: int | None = None


NO_LIMITS = TokenLimits()


class MaskMaker:
    """Computes masks without the interpreter lock. Call from one thread at a time."""

    def __init__(self, vocabulary_size: int) -> None:
        self.row_bytes = _row_bytes(vocabulary_size)
        self._every_token = ((1 << vocabulary_size) - 1).to_bytes(self.row_bytes, "little")
        self._executor = _executor()
        self._one_by_one = False

    def masks(self, matchers: Sequence[TokenMatcher | None], limits: Sequence[TokenLimits]) -> bytes:
        """Return one mask for each matcher, concatenated, as `TokenMasks` in engine.proto.

        A mask has the tokens that its matcher and its entry of `limits` allow. None allows every token. Sets `error` of
        a matcher that allows none of `allowed`. The mask of a matcher with an error has every token.
        """
        masks = bytearray(self._every_token * len(matchers))
        if live := [(place, entry) for place, entry in enumerate(matchers) if entry is not None and not entry.error]:
            self._compute(live, masks)
        for place, (entry, limit) in enumerate(zip(matchers, limits, strict=True)):
            row = slice(place * self.row_bytes, (place + 1) * self.row_bytes)
            masks[row] = self._every_token if entry is not None and entry.error else self._row(masks[row], entry, limit)
        return bytes(masks)

    def _row(self, mask: bytearray, entry: TokenMatcher | None, limits: TokenLimits) -> bytes | bytearray:
        """Return the mask of a matcher without an error within the limits of its entry."""
        if entry is not None:
            mask = limits.allowed.within(entry.bounded(mask))
            if limits.allowed and mask == bytes(self.row_bytes):
                entry.error = NONE_ALLOWED
                return self._every_token
        elif limits.allowed:  # without the intersection of large numbers
            mask = bytearray(limits.allowed[: self.row_bytes].ljust(self.row_bytes, b"\0"))
        if limits.forced is not None and mask[limits.forced // 8] >> limits.forced % 8 & 1:
            return (1 << limits.forced).to_bytes(self.row_bytes, "little")
        for tokens in filter(None, limits.banned):
            mask = _without(mask, tokens)
        return mask

    def _compute(self, live: Sequence[tuple[int, TokenMatcher]], masks: bytearray) -> None:
        """Write the masks of matchers at their places; set `error` of those that allow no token."""
        width = self.row_bytes
        address = ctypes.addressof(ctypes.c_char.from_buffer(masks))
        begun = perf_counter()
        if self._executor is None or self._one_by_one:
            self._compute_one_by_one(live, address)
        else:
            jobs = [(entry.matcher, place) for place, entry in live]
            self._executor.unsafe_compute_mask_ptr(jobs, address, width, len(masks) // width)
        self._one_by_one = perf_counter() - begun > SLOW_SECONDS
        self._compute_one_by_one([(place, entry) for place, entry in live if entry.renew()], address)
        for place, entry in live:
            start = place * width
            _allow_all_ends(masks, start, entry.ends)
            entry.note_error(is_stuck=masks[start : start + width] == bytes(width))

    def _compute_one_by_one(self, live: Iterable[tuple[int, TokenMatcher]], address: int) -> None:
        """Compute each mask on this thread, to measure it."""
        for place, entry in live:
            entry.compute(address + place * self.row_bytes, self.row_bytes)


def _row_bytes(vocabulary_size: int) -> int:
    return -(-vocabulary_size // WORD_BITS) * (WORD_BITS // 8)


def _executor() -> LLExecutor | None:
    """Return threads that compute masks; None at a limit of threads, where the caller's thread computes them."""
    try:
        return LLExecutor(num_threads=max(1, min(MAX_THREADS, (os.cpu_count() or 1) // 2)))
    except ValueError as error:
        logger.warning("masks are computed one by one: %s", error)
        return None


def _allow_all_ends(masks: bytearray, start: int, ends: tuple[int, ...]) -> None:
    """Set the bits of all `ends` in the mask that begins at byte `start` if the bit of the first is set."""
    first, *others = ends
    if others and masks[start + first // 8] >> first % 8 & 1:
        for token in others:
            masks[start + token // 8] |= 1 << token % 8


def _without(mask: bytearray, tokens: frozenset[int]) -> bytearray:
    """Return a mask without `tokens`, or the mask itself if it would be empty."""
    rest = mask[:]
    for token in tokens:
        if 0 <= token < 8 * len(rest):
            rest[token // 8] &= ~(1 << token % 8)
    return mask if rest == bytes(len(rest)) else rest
