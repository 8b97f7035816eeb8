"""Discrete-event simulation of pipelines: a real scheduler, and stages whose times come from a cost model.

An iteration passes through the stages of its pipeline in order; a stage computes one iteration at a time, in the order
of dispatch. After the last stage the scheduler commits and dispatches again. Pure: no clock, no randomness.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Sequence

from orca_master.scheduling.batch import Batch
from orca_master.scheduling.request import Request

from orca_bench.cost import CostModel, Work
from orca_bench.outcome import Fate, Run, Span
from orca_bench.scheduling import Scheduling
from orca_bench.traces import TracedRequest


def simulate(
    trace: Sequence[TracedRequest],
    scheduling: Scheduling,
    cost: CostModel,
    num_partitions: int = 1,
    on_finish: Callable[[], None] = lambda: None,
) -> Run:
    """Run the trace to its end over pipelines of `num_partitions` stages; raise MisfitError.

    `on_finish` is called whenever a request is complete.
    """
    fates = [Fate(traced.arrival) for traced in trace]
    free_at: dict[str, list[float]] = {}
    spans: list[Span] = []
    numbers = itertools.count()
    events: list[tuple[float, int, Batch | Request]] = [
        (traced.arrival, next(numbers), as_request(index, traced)) for index, traced in enumerate(trace)
    ]
    heapq.heapify(events)
    now, num_iterations = 0.0, 0
    while events:
        now, _, event = heapq.heappop(events)
        if isinstance(event, Request):
            scheduling.add(event)
        else:
            zeros = [0] * sum(scheduled.samples for scheduled in event.requests)
            for request in scheduling.commit(event, zeros):
                tokens = fates[request.arrival].tokens
                tokens.append(now)
                if len(tokens) == request.max_gen_tokens:
                    on_finish()
        if events and events[0][0] == now:
            continue  # process all events of the same time before dispatching
        while batch := scheduling.next_batch():
            num_iterations += 1
            stages = free_at.setdefault(batch.pipeline, [0.0] * num_partitions)
            ended = _run_stages(batch, num_iterations, now, cost, stages, spans)
            heapq.heappush(events, (ended + cost.turnaround_seconds, next(numbers), batch))
    return Run(fates, now, num_iterations, spans)


def as_request(index: int, traced: TracedRequest, vocabulary: int = 1) -> Request:
    """Convert a traced request for the scheduler; token ids wrap around at the vocabulary size, text becomes zeros."""
    prompt = (0,) * traced.input_length
    if vocabulary > 1 and not isinstance(traced.prompt, str):
        prompt = tuple(token % vocabulary for token in traced.prompt)
    return Request(str(index), index, prompt, traced.output_length)


def label(batch: Batch) -> str:
    """Return the arrival numbers of a batch's requests as its label."""
    return " ".join(str(scheduled.request.arrival) for scheduled in batch.requests)


def _run_stages(
    batch: Batch, sequence: int, now: float, cost: CostModel, free_at: list[float], spans: list[Span]
) -> float:
    """Simulate the stages of an iteration; return the end time on the last stage."""
    work = [Work(scheduled.num_tokens, scheduled.context_length) for scheduled in batch.requests]
    hand_over = cost.hand_over_seconds(work)
    moment, name = now, label(batch)
    for stage in range(len(free_at)):
        begin = max(moment, free_at[stage])
        end = begin + cost.stage_seconds(stage, work)
        free_at[stage] = end + cost.between_seconds
        spans.append(Span(batch.pipeline, stage, sequence, begin, end, name))
        moment = end + (hand_over if stage + 1 < len(free_at) else 0.0)
    return moment
