"""The baselines on schedules worked out by hand, what holds of every run, and that all generate the same tokens."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from orca_bench.baselines.cell_batching import CellBatching
from orca_bench.baselines.phase_aligned import PhaseAligned
from orca_bench.baselines.request_level import RequestLevel, RequestLevelSetup
from orca_bench.calibration import Measured
from orca_bench.on_engine import EngineSpec, live_engine
from orca_bench.scheduling import MisfitError, OrcaScheduling, OrcaSetup, Scheduling
from orca_bench.simulator import simulate
from orca_bench.traces import TracedRequest
from orca_master.scheduling.request import Request
from support.engines import worker_processes

SECOND = Measured(((1.0, 0, 0, 0, 0),) * 3)


def request(arrival: float, inputs: int, outputs: int) -> TracedRequest:
    return TracedRequest(arrival, tuple(range(inputs)), inputs, outputs)


def batches(trace: list[TracedRequest], scheduling: Scheduling, num_partitions: int = 1) -> list[str]:
    """Return the requests of each iteration, in the order in which the first stage runs them."""
    run = simulate(trace, scheduling, SECOND, num_partitions)
    return [span.label for span in run.spans if span.partition == 0]


def test_phase_aligned_batches_only_what_has_one_shape():
    """C2: 0 and 1 initiate together, 2 has another length; 0 and 1 increment together, 2 alone."""
    trace = [request(0.0, 4, 3), request(0.0, 4, 2), request(0.0, 5, 2)]
    assert batches(trace, PhaseAligned(8, 1, slots=960)) == ["0 1", "0 1", "0", "2", "2"]
    assert batches(trace, OrcaScheduling(OrcaSetup(1, 8, 960))) == ["0 1 2", "0 1 2", "0"]


def test_phase_aligned_meets_by_chance():
    """A prompt of 5 and a prompt of 4 with a token have the same index, but only while neither has moved on."""
    trace = [request(0.0, 4, 3), request(0.5, 5, 3)]
    # 0 initiates; both could go, 0 is older and increments; then 0 at index 6 and 1 still to initiate.
    assert batches(trace, PhaseAligned(8, 1, slots=960)) == ["0", "0", "0", "1", "1", "1"]
    late = [request(0.0, 6, 1), request(0.0, 4, 3), request(0.0, 5, 2)]
    assert batches(late, PhaseAligned(8, 1, slots=960)) == ["0", "1", "1", "1", "2", "2"]


def test_phase_aligned_pipelines_like_orca():
    trace = [request(0.0, 4, 2), request(0.0, 5, 2)]
    assert batches(trace, PhaseAligned(8, 2, slots=960), 2) == ["0", "1", "0", "1"]


def test_cells_of_one_index_are_batched_whatever_they_are():
    """Both begin at index 0 and stay together, input or generated; the shorter one leaves, nobody waits."""
    trace = [request(0.0, 3, 1), request(0.0, 1, 4)]
    assert batches(trace, CellBatching(8, slots=960)) == ["0 1", "0 1", "0 1", "1"]


def test_cells_of_different_indices_run_one_by_one():
    """The second arrives one index late and never catches up: execution is serialized (section 7)."""
    trace = [request(0.0, 1, 3), request(0.5, 1, 3)]
    assert batches(trace, CellBatching(8, slots=960)) == ["0", "0", "0", "1", "1", "1"]


def test_a_full_batch_of_cells_goes_first():
    trace = [request(0.0, 2, 2), request(0.5, 1, 1), request(0.5, 1, 1)]
    assert batches(trace, CellBatching(2, slots=960)) == ["0", "1 2", "0", "0"]


def test_slots_bound_the_aligned_baselines():
    trace = [request(0.0, 8, 8), request(0.0, 8, 8)]
    assert batches(trace, PhaseAligned(2, 1, slots=16))[:8] == ["0"] * 8
    with pytest.raises(MisfitError, match="does not fit into 16 slots"):
        batches([request(0.0, 8, 9)], CellBatching(2, slots=16))


SCHEDULINGS: dict[str, Callable[[int, int], Scheduling]] = {
    "orca": lambda size, partitions: OrcaScheduling(OrcaSetup(partitions, size, 960)),
    "request-level": lambda size, partitions: RequestLevel(
        RequestLevelSetup(partitions, size, -(-size // partitions), 960, 80)
    ),
    "phase-aligned": lambda size, partitions: PhaseAligned(size, partitions, 960),
    "cells": lambda size, partitions: CellBatching(size, 960),
}


@pytest.mark.parametrize("name", SCHEDULINGS)
@settings(max_examples=40, deadline=None)
@given(
    entries=st.lists(st.tuples(st.floats(0, 20), st.integers(1, 40), st.integers(1, 12)), min_size=1, max_size=20),
    size=st.integers(1, 8),
    partitions=st.integers(1, 3),
)
def test_every_token_comes_once(name, entries, size, partitions):
    trace = [request(arrival, inputs, outputs) for arrival, inputs, outputs in sorted(entries)]
    run = simulate(trace, SCHEDULINGS[name](size, partitions), SECOND, partitions)
    for traced, fate in zip(trace, run.requests, strict=True):
        assert len(fate.tokens) == traced.output_length
        assert fate.tokens == sorted(fate.tokens)
        assert fate.tokens[0] >= traced.arrival + partitions - 1e-9
    assert all(len(span.label.split()) <= size for span in run.spans)


class Recorder:
    """A scheduling that remembers its requests."""

    def __init__(self, inner: Scheduling) -> None:
        self.requests: list[Request] = []
        self.next_batch, self.commit, self._add = inner.next_batch, inner.commit, inner.add

    def add(self, request: Request) -> None:
        self.requests.append(request)
        self._add(request)


@pytest.mark.exhaustive
def test_all_generate_the_same_tokens_on_the_engine(checkpoint):
    """Only the order of work differs: a prompt fed whole, from the shortest on, or token by token ends the same."""
    trace = [
        TracedRequest(0.01 * index, tuple((7 * index + place) % 200 for place in range(inputs)), inputs, outputs)
        for index, (inputs, outputs) in enumerate([(3, 6), (17, 2), (3, 6), (9, 9), (20, 1), (2, 12)])
    ]

    async def generate(spec: EngineSpec, addresses: list[str]) -> dict[str, list[list[int]]]:
        found = {}
        async with live_engine(spec, addresses) as engine:
            for name, make in SCHEDULINGS.items():
                recorder = Recorder(make(3, 2))
                run = await engine.run(trace, recorder, time_limit=60)
                assert {span.partition for span in run.spans} == {0, 1}
                found[name] = [request.generated[: request.max_gen_tokens] for request in recorder.requests]
                assert [len(fate.tokens) for fate in run.requests] == [traced.output_length for traced in trace]
        return found

    with worker_processes(2) as (addresses, _):
        spec = EngineSpec(checkpoint("gpt2-head64-tied"), num_partitions=2, dtype="float32", slots=960)
        found = asyncio.run(generate(spec, addresses))
    assert len({token for tokens in found["orca"] for token in tokens}) > 10, "not a trivial output"
    for name in SCHEDULINGS:
        assert found[name] == found["orca"], name
