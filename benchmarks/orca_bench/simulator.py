"""Discrete events around the real `Scheduler` and ledger: everything but the stages' time is what runs in a master.

An iteration passes through its pipeline's stages in order; a stage works on one at a time, in the order of dispatch.
When the last stage has done it the scheduler commits, and dispatches again while it may. Pure: no clock, no randomness.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from orca_master.kv_ledger import BLOCK_SIZE, LEDGERS
from orca_master.pool import RequestPool
from orca_master.request import Request
from orca_master.scheduler import Batch, Scheduler, SchedulerConfig

from orca_bench.cost import CostModel, Work
from orca_bench.traces import TracedRequest

UNBOUNDED = 1 << 60


@dataclass(frozen=True, slots=True)
class Setup:
    """What is simulated: `num_partitions` stages per pipeline, `replicas` pipelines, `slots` K/V slots each."""

    num_partitions: int
    max_batch_size: int
    slots: int
    replicas: int = 1
    token_budget: int | None = 2048
    admission: str = "reserve"
    balanced: bool = True


@dataclass(slots=True)
class Simulated:
    """One request's fate; times in simulated seconds, `tokens` has one for each generated token."""

    arrival: float
    tokens: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Run:
    """A whole run. `busy`: share of the time from begin to end that each stage worked, by pipeline and partition."""

    requests: list[Simulated]
    seconds: float
    num_iterations: int
    busy: list[list[float]]


class MisfitError(Exception):
    """A request that could never be admitted."""


def simulate(trace: Sequence[TracedRequest], setup: Setup, cost: CostModel) -> Run:
    """Runs the trace to its end; raises MisfitError for a request that needs more slots than there are."""
    requests = [_request(index, traced, setup) for index, traced in enumerate(trace)]
    pool = RequestPool(UNBOUNDED, UNBOUNDED)
    config = SchedulerConfig(setup.max_batch_size, setup.num_partitions, setup.token_budget, setup.balanced)
    scheduler = Scheduler(config, pool)
    pipelines = [str(index) for index in range(setup.replicas)]
    for name in pipelines:
        scheduler.add_pipeline(name, LEDGERS[setup.admission](setup.slots // BLOCK_SIZE))
    fates = [Simulated(request.arrival) for request in trace]
    free_at = {name: [0.0] * setup.num_partitions for name in pipelines}
    worked = {name: [0.0] * setup.num_partitions for name in pipelines}
    numbers = itertools.count()
    events: list[tuple[float, int, Batch | Request]] = [
        (traced.arrival, next(numbers), request) for traced, request in zip(trace, requests, strict=True)
    ]
    heapq.heapify(events)
    now, num_iterations = 0.0, 0
    while events:
        now, _, event = heapq.heappop(events)
        if isinstance(event, Request):
            pool.add(event)
        else:
            zeros = [0] * sum(scheduled.samples for scheduled in event.requests)
            for _, request in scheduler.commit(event, zeros):
                fates[request.arrival].tokens.append(now)
        if events and events[0][0] == now:
            continue  # what happens at the same moment is seen together
        for batch in _dispatch(scheduler, pipelines):
            num_iterations += 1
            ended = _pass(batch, now, cost, free_at[batch.pipeline], worked[batch.pipeline])
            heapq.heappush(events, (ended, next(numbers), batch))
    busy = [[seconds / now if now else 0.0 for seconds in worked[name]] for name in pipelines]
    return Run(fates, now, num_iterations, busy)


def _request(index: int, traced: TracedRequest, setup: Setup) -> Request:
    # The scheduler looks at lengths only, so every prompt is zeros.
    request = Request(str(index), index, (0,) * traced.input_length, traced.output_length)
    if -(-request.max_tokens // BLOCK_SIZE) > setup.slots // BLOCK_SIZE:
        raise MisfitError(f"a request of {request.max_tokens} tokens does not fit into {setup.slots} slots")
    return request


def _dispatch(scheduler: Scheduler, pipelines: list[str]) -> Iterator[Batch]:
    """As EngineMaster does: the pipeline with the fewest iterations in flight first, while something can run."""
    while True:
        for name in sorted(pipelines, key=scheduler.in_flight):
            if proposal := scheduler.select(name):
                yield scheduler.dispatch(name, proposal)
                break
        else:
            return


def _pass(batch: Batch, now: float, cost: CostModel, free_at: list[float], worked: list[float]) -> float:
    """Takes a batch through the stages; returns when the last has done it."""
    work = [Work(scheduled.num_tokens, scheduled.context_length) for scheduled in batch.requests]
    seconds, hand_over = cost.stage_seconds(work), cost.hand_over_seconds(work)
    moment = now
    for stage in range(len(free_at)):
        begin = max(moment, free_at[stage])
        free_at[stage] = begin + seconds
        worked[stage] += seconds
        moment = free_at[stage] + (hand_over if stage + 1 < len(free_at) else 0.0)
    return moment
