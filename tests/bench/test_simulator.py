"""The simulator on schedules that can be worked out by hand, and what holds of every run."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from orca_bench.baselines.request_level import RequestLevel, RequestLevelSetup
from orca_bench.calibration import Measured
from orca_bench.cost import HARDWARE, TABLE_1, CostModel, Roofline, Work
from orca_bench.outcome import Run
from orca_bench.scheduling import MisfitError, OrcaScheduling, OrcaSetup
from orca_bench.simulator import simulate
from orca_bench.traces import TracedRequest, synthetic, with_arrivals

SECOND = Measured(((1.0, 0, 0, 0, 0),) * 3)
"""Every iteration takes a second on every stage."""


def orca(trace: list[TracedRequest], setup: OrcaSetup, cost: CostModel) -> Run:
    return simulate(trace, OrcaScheduling(setup), cost, setup.num_partitions)


def baseline(trace: list[TracedRequest], setup: RequestLevelSetup, cost: CostModel) -> Run:
    return simulate(trace, RequestLevel(setup), cost, setup.num_partitions)


def request(arrival: float, inputs: int, outputs: int) -> TracedRequest:
    return TracedRequest(arrival, (), inputs, outputs)


def tokens(run) -> list[list[float]]:
    return [fate.tokens for fate in run.requests]


def test_requests_join_and_leave_at_every_iteration():
    """Figure 3's other side: the short one leaves at once, the late one joins the running batch."""
    trace = [request(0.0, 4, 3), request(0.0, 2, 1), request(0.5, 9, 2)]
    run = orca(trace, OrcaSetup(1, max_batch_size=2, slots=96), SECOND)
    assert tokens(run) == [[1.0, 2.0, 3.0], [1.0], [2.0, 3.0]]
    assert (run.num_iterations, run.seconds, run.busy) == (3, 3.0, [[1.0]])


def test_slots_hold_admission_back():
    trace = [request(0.0, 8, 8), request(0.0, 8, 8)]
    assert tokens(orca(trace, OrcaSetup(1, 2, slots=32), SECOND))[1][0] == 1.0
    assert tokens(orca(trace, OrcaSetup(1, 2, slots=16), SECOND))[1][0] == 9.0, "the first has to leave"
    with pytest.raises(MisfitError, match="15 slots are less than one block"):
        orca(trace, OrcaSetup(1, 2, slots=15), SECOND)


def test_two_stages_work_on_two_batches():
    """Figure 8a: with two batches in flight both partitions are busy; with one request they take turns."""
    alone = orca([request(0.0, 1, 4)], OrcaSetup(2, 1, slots=64), SECOND)
    assert tokens(alone) == [[2.0, 4.0, 6.0, 8.0]]
    assert alone.busy == [[0.5, 0.5]]
    pair = orca([request(0.0, 1, 4)] * 2, OrcaSetup(2, 8, slots=64), SECOND)
    assert tokens(pair) == [[2.0, 4.0, 6.0, 8.0], [3.0, 5.0, 7.0, 9.0]]
    letter = orca([request(0.0, 1, 4)] * 2, OrcaSetup(2, 8, slots=64, balanced=False), SECOND)
    assert tokens(letter) == [[2.0, 4.0, 6.0, 8.0]] * 2, "Algorithm 1 to the letter leaves a stage idle"


def test_two_pipelines_under_one_pool():
    trace = [request(0.0, 1, 2)] * 4
    run = orca(trace, OrcaSetup(1, 1, slots=64, replicas=2), SECOND)
    assert tokens(run) == [[1.0, 2.0], [1.0, 2.0], [3.0, 4.0], [3.0, 4.0]]


def test_the_baseline_by_hand():
    """Nobody joins or leaves; longer inputs are fed token by token; answers come when the last is done."""
    trace = [request(0.0, 4, 3), request(0.0, 2, 1), request(0.5, 9, 2)]
    run = baseline(trace, RequestLevelSetup(1, 2, 2, slots=200, max_length=100), SECOND)
    # 2 of the first one's 4 inputs are left after the first iteration: 2 + 3 iterations in all; then the third alone.
    assert tokens(run) == [[5.0] * 3, [5.0], [7.0, 7.0]]
    with pytest.raises(MisfitError, match="a batch of 3 x 100"):
        baseline(trace, RequestLevelSetup(1, 3, 3, slots=200, max_length=100), SECOND)


def test_the_baselines_microbatches():
    """Figure 8b: two microbatches keep two stages busy but for the ends; one leaves half of each idle."""
    trace = [request(0.0, 1, 4)] * 2
    one = baseline(trace, RequestLevelSetup(2, 2, 2, slots=200, max_length=100), SECOND)
    two = baseline(trace, RequestLevelSetup(2, 2, 1, slots=200, max_length=100), SECOND)
    assert (one.seconds, two.seconds) == (8.0, 9.0)
    assert (one.busy, two.busy) == ([[0.5, 0.5]], [[8 / 9, 8 / 9]])


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.floats(0, 20), st.integers(1, 40), st.integers(1, 12)), min_size=1, max_size=25),
    st.integers(1, 3), st.integers(1, 8), st.integers(1, 2), st.sampled_from(["reserve", "paged"]),
    st.sampled_from([None, 16]),
)  # fmt: skip
def test_every_token_comes_once_and_in_order(entries, partitions, size, replicas, admission, budget):
    trace = [request(arrival, inputs, outputs) for arrival, inputs, outputs in sorted(entries)]
    cost = Measured(((0.5, 0, 0.01, 0.001, 0),) * partitions, hand_over=0.1)
    run = orca(trace, OrcaSetup(partitions, size, 128, replicas, budget, admission), cost)
    for traced, fate in zip(trace, run.requests, strict=True):
        assert len(fate.tokens) == traced.output_length
        assert fate.tokens == sorted(fate.tokens)
        assert fate.tokens[0] >= traced.arrival + 0.5 * partitions
    assert all(0 <= share <= 1 + 1e-9 for pipeline in run.busy for share in pipeline)
    assert orca(trace, OrcaSetup(partitions, size, 128, replicas, budget, admission), cost) == run


def test_the_roofline_at_its_two_ends():
    """One token: all weights once over the bandwidth. A long prompt: all FLOPs over the peak."""
    hardware = HARDWARE["a100-40g"]
    shape, _, _ = TABLE_1["13b"]
    cost = Roofline(hardware, shape, 1, 1)
    assert shape.weight_bytes / 2 == pytest.approx(13e9, rel=0.03)
    assert cost.stage_seconds(0, [Work(1, 0)]) == pytest.approx(shape.weight_bytes / hardware.bandwidth, rel=0.01)
    long = cost.stage_seconds(0, [Work(2048, 0)])
    assert long == pytest.approx(2 * 13e9 * 2048 / hardware.flops, rel=0.1)
    for name, billions in (("101b", 101), ("175b", 175), ("341b", 341)):
        assert TABLE_1[name][0].weight_bytes / 2 == pytest.approx(billions * 1e9, rel=0.02)


def test_intra_layer_parallelism_pays_with_all_reduces():
    hardware = HARDWARE["a100-40g"]
    shape = TABLE_1["101b"][0]
    work = [Work(1, 100)] * 8
    one, eight = (Roofline(hardware, shape, 1, ranks).stage_seconds(0, work) for ranks in (1, 8))
    assert one / 8 < eight < one / 3


@pytest.mark.parametrize(("model", "fits", "too_many"), [("13b", 4, 8), ("101b", 8, 16)])
def test_the_baseline_runs_out_of_memory_where_the_paper_says(model, fits, too_many):
    """Section 6.1: no batch of 8 with 13 B and none of 16 with 101 B, as K/V are allocated for 2,048 tokens each."""
    shape, partitions, ranks = TABLE_1[model]
    cost = Roofline(HARDWARE["a100-40g"], shape, partitions, ranks)
    trace = [request(0.0, 32, 32)]
    baseline(trace, RequestLevelSetup(partitions, fits, fits, cost.kv_slots()), cost)
    with pytest.raises(MisfitError):
        baseline(trace, RequestLevelSetup(partitions, too_many, too_many, cost.kv_slots()), cost)
    orca([request(0.0, 32, 32)] * too_many, OrcaSetup(partitions, too_many, cost.kv_slots()), cost)


def test_iteration_level_scheduling_beats_the_baseline_on_the_papers_trace():
    shape, partitions, ranks = TABLE_1["175b"]
    cost = Roofline(HARDWARE["a100-40g"], shape, partitions, ranks)
    trace = with_arrivals(synthetic("paper", 150, 0), float("inf"), 1.0, 0)
    ours = orca(trace, OrcaSetup(partitions, 32, cost.kv_slots(), token_budget=None), cost)
    theirs = baseline(trace, RequestLevelSetup(partitions, 16, 8, cost.kv_slots()), cost)
    assert ours.seconds < theirs.seconds / 2
