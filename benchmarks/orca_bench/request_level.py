"""The paper's baseline, simulated: FasterTransformer behind a batching queue (section 6.1 and 6.2, "ft(max_bs, mbs)").

Its rules, each from the paper:
- The queue hands over a batch of at most `max_batch_size` requests when the engine is idle, without waiting for more.
- Request-level scheduling: nobody joins or leaves a running batch, and all are answered when the last is done
  (section 2, Figure 3). Requests that are done are computed on.
- All begin as if they had the shortest input of the batch; what remains of a longer one is fed token by token with the
  increments (section 6.2, on different numbers of input tokens).
- Keys and values are allocated for the maximum sequence length (section 6.1), which bounds the batch.
- Pipelining by microbatches of `microbatch_size`; the same microbatch enters the first stage again only after it has
  left the last (section 2 and Figure 8b).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from orca_bench.cost import CostModel, Work
from orca_bench.simulator import MisfitError, Run, Simulated
from orca_bench.traces import TracedRequest


@dataclass(frozen=True, slots=True)
class RequestLevelSetup:
    """What is simulated: `slots` K/V slots in all, `max_length` of them for each request."""

    num_partitions: int
    max_batch_size: int
    microbatch_size: int
    slots: int
    max_length: int = 2048


def simulate_request_level(trace: Sequence[TracedRequest], setup: RequestLevelSetup, cost: CostModel) -> Run:
    """Runs the trace to its end; raises MisfitError if the batch needs more slots than there are."""
    if setup.max_batch_size * setup.max_length > setup.slots:
        raise MisfitError(
            f"a batch of {setup.max_batch_size} x {setup.max_length} tokens does not fit into {setup.slots} slots"
        )
    fates = [Simulated(request.arrival) for request in trace]
    waiting = deque(range(len(trace)))
    free_at = [0.0] * setup.num_partitions
    worked = [0.0] * setup.num_partitions
    now, num_iterations = 0.0, 0
    while waiting:
        now = max(now, trace[waiting[0]].arrival)
        batch: list[int] = []
        while waiting and len(batch) < setup.max_batch_size and trace[waiting[0]].arrival <= now:
            batch.append(waiting.popleft())
        now, count = _run_batch([trace[index] for index in batch], now, setup, cost, free_at, worked)
        num_iterations += count
        for index in batch:
            fates[index].tokens = [now] * trace[index].output_length
    busy = [seconds / now if now else 0.0 for seconds in worked]
    return Run(fates, now, num_iterations, [busy])


def _run_batch(
    batch: list[TracedRequest],
    now: float,
    setup: RequestLevelSetup,
    cost: CostModel,
    free_at: list[float],
    worked: list[float],
) -> tuple[float, int]:
    """Runs one batch to its end; returns when that is, and the iterations of a microbatch that it took."""
    shortest = min(request.input_length for request in batch)
    # The first iteration generates too, for those whose input it has read.
    num_steps = max(request.input_length - shortest + request.output_length for request in batch)
    size = setup.microbatch_size
    microbatches = [batch[first : first + size] for first in range(0, len(batch), size)]
    ready = [now] * len(microbatches)
    for step in range(num_steps):
        tokens, context = (shortest, 0) if step == 0 else (1, shortest + step - 1)
        for number, microbatch in enumerate(microbatches):
            work = [Work(tokens, context)] * len(microbatch)
            seconds, hand_over = cost.stage_seconds(work), cost.hand_over_seconds(work)
            moment = ready[number]
            for stage in range(setup.num_partitions):
                free_at[stage] = max(moment, free_at[stage]) + seconds
                worked[stage] += seconds
                moment = free_at[stage] + (hand_over if stage + 1 < setup.num_partitions else 0.0)
            ready[number] = moment
    return max(ready), num_steps * len(microbatches)
