"""Traces and figures as values."""

from __future__ import annotations

import statistics
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from orca_bench.client import Outcome
from orca_bench.report import parse_slo, percentile, report
from orca_bench.traces import TracedRequest, synthetic, with_arrivals, with_new_prompts


def test_the_papers_trace():
    """Section 6.2: input U(32, 512), output U(1, 128), Poisson arrivals."""
    requests = with_arrivals(synthetic("paper", 4000, seed=3), rate=5.0, burstiness=1.0, seed=3)
    inputs, outputs = [r.input_length for r in requests], [r.output_length for r in requests]
    assert (min(inputs), max(inputs), min(outputs), max(outputs)) == (32, 512, 1, 128)
    assert statistics.mean(inputs) == pytest.approx(272, rel=0.03)
    assert statistics.mean(outputs) == pytest.approx(64.5, rel=0.03)
    gaps = [b.arrival - a.arrival for a, b in pairwise(requests)]
    assert statistics.mean(gaps) == pytest.approx(0.2, rel=0.06)
    assert statistics.stdev(gaps) == pytest.approx(0.2, rel=0.1), "exponential: deviation = mean"
    assert all(len(r.prompt) == r.input_length for r in requests)


@given(st.floats(0.1, 10), st.integers(0, 100))
def test_burstiness_keeps_the_rate(burstiness, seed):
    requests = with_arrivals(synthetic("homogeneous", 200, 0, (1, 1)), 10.0, burstiness, seed)
    moments = [request.arrival for request in requests]
    assert moments == sorted(moments)
    assert moments[0] == 0
    assert with_arrivals(requests, 10.0, burstiness, seed) == requests


def test_all_at_once():
    assert {r.arrival for r in with_arrivals(synthetic("paper", 9, 0), float("inf"), 1.0, 0)} == {0.0}


def test_new_prompts_have_the_same_lengths():
    requests = [*synthetic("paper", 5, 0), TracedRequest(0.0, "Who are you", 3, 2)]
    first, second = (with_new_prompts(requests, 0, use) for use in ("rate 1", "rate 2"))
    assert first == with_new_prompts(requests, 0, "rate 1") != with_new_prompts(requests, 1, "rate 1")
    assert first[-1].prompt == "rate 1: Who are you"
    assert len({entry.prompt for entry in (*requests, *first, *second)}) == 3 * len(requests)
    for old, new in zip(requests, first, strict=True):
        assert replace(new, prompt=old.prompt) == old
        assert isinstance(new.prompt, str) or len(new.prompt) == new.input_length


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=50))
def test_percentiles_are_those_of_the_statistics_module(values):
    expected = statistics.quantiles(values, n=100, method="inclusive")
    for share in (1, 50, 90, 99):
        assert percentile(values, share) == pytest.approx(expected[share - 1], rel=1e-6, abs=1e-6)


def outcome(sent: float, tokens: list[float], error: str = "", planned: float | None = None) -> Outcome:
    request = TracedRequest(0.0, (1, 2), 2, len(tokens))
    return Outcome(request, sent if planned is None else planned, sent, tokens, num_output=len(tokens), error=error)


def test_figures_by_hand():
    """Two answers, one of a single token, and a failure."""
    first = outcome(10.0, [10.5, 10.6, 10.8], planned=9.9)
    second = outcome(11.0, [12.0])
    failed = outcome(12.0, [], error="HTTP 500: no")
    found = report([first, second, failed], {"ttft": 600.0})
    assert (found["completed"], found["failed"], found["failures"]) == (2, 1, {"HTTP 500": 1})
    assert found["duration"] == pytest.approx(12.0 - 9.9)
    assert found["median_ttft_ms"] == pytest.approx(750)
    assert found["mean_tpot_ms"] == pytest.approx(150), "only the first has tokens after its first"
    assert found["mean_itl_ms"] == pytest.approx(150)
    assert found["median_normalized_latency_ms"] == pytest.approx((800 / 3 + 1000) / 2)
    assert found["output_throughput"] == pytest.approx(4 / 2.1)
    assert found["request_goodput"] == pytest.approx(1 / 2.1)
    assert found["max_lag_ms"] == pytest.approx(100)


def test_limits_are_read():
    assert parse_slo("ttft:500,tpot:50.5") == {"ttft": 500.0, "tpot": 50.5}
    for text in ("ttft", "ttft:x", "other:5", ""):
        with pytest.raises(ValueError, match="MILLISECONDS"):
            parse_slo(text)
