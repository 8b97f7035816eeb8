"""The paper's baseline: FasterTransformer behind a batching queue (sections 6.1 and 6.2, "ft(max_bs, mbs)").

Its rules, each from the paper:
- When the engine is idle, the queue passes a batch of at most `max_batch_size` requests, without waiting for more.
- Request-level scheduling: no request joins or leaves a running batch, and all are answered when the last has finished
  (section 2, Figure 3). Finished requests are still computed.
- The initiation computes the shortest input length of the batch for all requests; the rest of longer inputs is
  computed token by token in the increments (section 6.2, on different numbers of input tokens).
- Keys and values are allocated for the maximum sequence length (section 6.1), which bounds the batch.
- Pipelining by microbatches of `microbatch_size`; a microbatch enters the first stage again only after it has
  left the last stage (section 4.2 and Figure 8b).
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
    """`slots` K/V slots in total, `max_length` of them for each request of a batch."""

    num_partitions: int
    max_batch_size: int
    microbatch_size: int
    slots: int
    max_length: int = 2048


@dataclass(slots=True)
class _Microbatch:
    """Requests with their positions in the batch, and the computed tokens, equal for all of them."""

    requests: list[tuple[int, Request]] = field(default_factory=list)
    num_computed: int = 0


class RequestLevel:
    """A `Scheduling`. Raises MisfitError for a batch that exceeds the memory, or a request longer than `max_length`."""

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
        """See Scheduling; dispatches the next microbatch of the running batch, or of a new batch if none runs."""
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
        """See Scheduling; returns all tokens of a batch when the whole batch has finished."""
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
        # The last generated token is returned without being an input.
        self._longest = max((request.max_tokens for request in self._batch), default=0) - 1
