"""The paper's baseline: FasterTransformer behind a batching queue (sections 6.1 and 6.2, "ft(max_bs, mbs)").

Its rules, each from the paper:
- The queue hands over a batch of at most `max_batch_size` requests when the engine is idle, without waiting for more.
- Request-level scheduling: nobody joins or leaves a running batch, and all are answered when the last is done
  (section 2, Figure 3). Requests that are done are computed on.
- All begin as if they had the shortest input of the batch; what remains of a longer one is fed token by token with the
  increments (section 6.2, on different numbers of input tokens).
- Keys and values are allocated for the maximum sequence length (section 6.1), which bounds the batch.
- Pipelining by microbatches of `microbatch_size`; the same microbatch enters the first stage again only after it has
  left the last (section 4.2 and Figure 8b).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from orca_master.scheduling.batch import Batch, ScheduledRequest
from orca_master.scheduling.kv_ledger import blocks_for
from orca_master.scheduling.request import Request

from orca_bench.scheduling import MisfitError, check_fits

PIPELINE = "0"


@dataclass(frozen=True, slots=True)
class RequestLevelSetup:
    """`slots` K/V slots in all, `max_length` of them for each place of a batch."""

    num_partitions: int
    max_batch_size: int
    microbatch_size: int
    slots: int
    max_length: int = 2048


@dataclass(slots=True)
class _Microbatch:
    """Requests with the places that they hold, and the tokens that all of them have computed."""

    requests: list[tuple[int, Request]] = field(default_factory=list)
    num_computed: int = 0


class RequestLevel:
    """A `Scheduling`. Raises MisfitError for a batch that memory cannot hold, or a request beyond `max_length`."""

    def __init__(self, setup: RequestLevelSetup) -> None:
        if setup.max_batch_size * setup.max_length > setup.slots:
            raise MisfitError(
                f"a batch of {setup.max_batch_size} x {setup.max_length} tokens does not fit into {setup.slots} slots"
            )
        self._setup = setup
        self._waiting: deque[Request] = deque()
        self._batch: list[Request] = []
        self._ready: deque[_Microbatch] = deque()
        self._running: deque[_Microbatch] = deque()
        self._shortest = self._longest = 0

    def add(self, request: Request) -> None:
        """See Scheduling."""
        check_fits(request, self._setup.max_length)
        self._waiting.append(request)

    def next_batch(self) -> Batch | None:
        """See Scheduling: the next microbatch of the batch that runs, or of a new one if none does."""
        if not self._batch:
            self._take_batch()
        if not self._ready or len(self._running) == self._setup.num_partitions:
            return None
        microbatch = self._ready.popleft()
        begins = microbatch.num_computed == 0
        num_tokens = self._shortest if begins else 1
        blocks = blocks_for(self._setup.max_length)
        batch = Batch(
            PIPELINE,
            tuple(
                ScheduledRequest(
                    request,
                    request.incarnation,
                    place,
                    num_tokens,
                    microbatch.num_computed,
                    tuple(range(place * blocks, (place + 1) * blocks)) if begins else (),
                    admitted=begins,
                    samples=microbatch.num_computed + num_tokens >= len(request.prompt),
                )
                for place, request in microbatch.requests
            ),
        )
        microbatch.num_computed += num_tokens
        self._running.append(microbatch)
        return batch

    def commit(self, batch: Batch, tokens: list[int]) -> list[Request]:
        """See Scheduling: nothing reaches a client before the whole batch is done."""
        microbatch = self._running.popleft()
        sampling = (scheduled.request for scheduled in batch.requests if scheduled.samples)
        for request, token in zip(sampling, tokens, strict=True):
            request.append(token)
        if microbatch.num_computed < self._longest:
            self._ready.append(microbatch)
        if self._ready or self._running:
            return []
        done, self._batch = self._batch, []
        return [request for request in done for _ in range(request.max_gen_tokens)]

    def _take_batch(self) -> None:
        size, count = self._setup.microbatch_size, min(self._setup.max_batch_size, len(self._waiting))
        self._batch = [self._waiting.popleft() for _ in range(count)]
        places = list(enumerate(self._batch))
        self._ready.extend(_Microbatch(places[first : first + size]) for first in range(0, count, size))
        self._shortest = min((len(request.prompt) for request in self._batch), default=0)
        # The last generated token is answered and not computed on.
        self._longest = max((request.max_tokens for request in self._batch), default=0) - 1
