"""`TokenMasks`: makes and sends the masks of the iterations in flight (protos/engine.proto, `TokenMasks`).

An iteration is sent without its masks, also ahead of the tokens that they depend on (scheduling/lookahead.py). As soon
as the master knows these tokens, a thread computes the masks while the workers compute the layers of the iteration. One
thread computes all masks in turn: a request whose pipeline is lost may need a mask again, but no matcher is used twice
at a time, and none gets a token before its mask is sent.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import cast

from orca_protos import engine_pb2 as pb

from orca_master.engine.faults import WorkerLostError
from orca_master.engine.supervisor import PipelineSupervisor
from orca_master.engine.workers import PipelineWorkers
from orca_master.scheduling.batch import Batch, ScheduledRequest
from orca_master.scheduling.request import Request
from orca_master.text.token_matcher import NO_LIMITS, MaskMaker, TokenLimits, TokenMatcher
from orca_master.threads import started_threads

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Unmasked:
    """An iteration whose masks have not been made."""

    supervisor: PipelineSupervisor
    workers: PipelineWorkers
    sequence: int
    requests: tuple[ScheduledRequest, ...]


class TokenMasks:
    """Masks of all pipelines; used on the engine's loop. `fail` ends requests whose grammar allows no token."""

    def __init__(self, fail: Callable[[Request, str], None]) -> None:
        self._fail = fail
        self._thread = started_threads(1, "masks")
        self._unmasked: dict[str, deque[_Unmasked]] = {}
        self._maker: MaskMaker | None = None

    def note_sent(self, supervisor: PipelineSupervisor, sequence: int, batch: Batch) -> None:
        """Note an iteration; call `advance` when its pipeline's tokens are known."""
        if masked := batch.masked:
            waiting = self._unmasked.setdefault(supervisor.id, deque())
            waiting.append(_Unmasked(supervisor, supervisor.workers, sequence, masked))

    def advance(self, supervisor: PipelineSupervisor) -> None:
        """Begin the masks of the iterations of a pipeline whose tokens are known."""
        waiting = self._unmasked.get(supervisor.id)
        while waiting and all(scheduled.is_known for scheduled in waiting[0].requests):
            self._begin(waiting.popleft())

    def forget(self, pipeline: str) -> None:
        """Drop the iterations of a lost pipeline."""
        self._unmasked.pop(pipeline, None)

    def _begin(self, iteration: _Unmasked) -> None:
        if self._maker is None:
            self._maker = MaskMaker(iteration.workers.facts.vocabulary_size)
        matchers, limits = [], []
        for scheduled in iteration.requests:
            matcher = None if scheduled.is_stale else cast("TokenMatcher | None", scheduled.request.constraint)
            matchers.append(matcher)
            limits.append(NO_LIMITS if scheduled.is_stale else _limits(scheduled.request, matcher))
        made = asyncio.get_running_loop().run_in_executor(self._thread, self._maker.masks, matchers, limits)
        made.add_done_callback(partial(self._send, iteration))

    def _send(self, iteration: _Unmasked, made: asyncio.Future[bytes]) -> None:
        """Send the masks; without them the workers would wait for ever, so an unexpected error ends the pipeline."""
        if made.cancelled():
            return
        if (error := made.exception()) is not None:
            logger.error("pipeline %s is abandoned: no masks", iteration.supervisor.id, exc_info=error)
            iteration.supervisor.give_up(WorkerLostError(f"internal error: {error!r}"))
            return
        iteration.workers.send_masks(iteration.sequence, pb.TokenMasks(allowed=made.result()))
        for scheduled in iteration.requests:
            request = scheduled.request
            if not scheduled.is_stale and request.constraint is not None and request.constraint.error:
                self._fail(request, request.constraint.error)


def _limits(request: Request, matcher: TokenMatcher | None) -> TokenLimits:
    """Return what limits the next token of a request beside its grammar."""
    banned = []
    # Workers ban the ends of other requests. Those of the matcher count also with `ignore_eos`.
    if request.masks_ends and len(request.generated) < request.sampling.min_tokens:
        banned.append(request.stop_token_ids.union(() if matcher is None else matcher.ends))
    # Behind the ends: bad words yield if they leave no other token, and `min_tokens` holds all the same.
    banned.append(request.sampling.bad_words.forbidden(request.generated))
    forced = None if request.thinking is None else request.thinking.forced
    return TokenLimits(banned, request.sampling.allowed_token_ids, forced)
