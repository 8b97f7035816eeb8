"""Measurements for comparisons: every request must be answered."""

from __future__ import annotations

import pytest
from orca_bench import open_loop
from orca_bench.client import Outcome
from orca_bench.traces import synthetic


def measured(monkeypatch, errors: list[str]) -> dict:
    """Measure a server whose answers have these errors."""

    async def prepared(trace, *_):
        return [
            Outcome(request, 0.0, 0.0, [0.5, 1.0], num_output=2, error=error)
            for request, error in zip(trace, errors, strict=True)
        ]

    monkeypatch.setattr(open_loop, "run", prepared)
    return open_loop.measure("paged", "http://127.0.0.1:9", "model", synthetic("paper", len(errors), 0))


def test_the_figures_of_answered_requests(monkeypatch):
    assert measured(monkeypatch, ["", ""])["output_throughput"] == 4


def test_a_failed_request_is_an_error(monkeypatch):
    with pytest.raises(RuntimeError, match="paged: 1 of 3 requests failed: HTTP 500: no"):
        measured(monkeypatch, ["", "HTTP 500: no", ""])
