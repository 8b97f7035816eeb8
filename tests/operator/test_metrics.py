"""The operator's metrics: what each call changes in the text that Prometheus reads."""

from __future__ import annotations

import asyncio

import pytest
from orca_operator.metrics import Metrics


def lines(metrics: Metrics) -> set[str]:
    return {line for line in metrics.render().decode().splitlines() if not line.startswith("#")}


def test_both_results_of_a_pass_are_there_from_the_start():
    """An alert on a rate needs the zero before the first failure."""
    assert {f'orca_operator_reconciles_total{{result="{result}"}} 0.0' for result in ("succeeded", "failed")} <= lines(
        Metrics()
    )


def test_passes_and_their_durations():
    metrics = Metrics()
    metrics.count_pass(True, 0.02)
    metrics.count_pass(True, 2.0)
    metrics.count_pass(False, 20.0)
    found = lines(metrics)
    assert 'orca_operator_reconciles_total{result="succeeded"} 2.0' in found
    assert 'orca_operator_reconciles_total{result="failed"} 1.0' in found
    assert 'orca_operator_reconcile_duration_seconds_bucket{le="0.025"} 1.0' in found
    assert 'orca_operator_reconcile_duration_seconds_bucket{le="2.5"} 2.0' in found
    assert "orca_operator_reconcile_duration_seconds_sum 22.02" in found


def test_a_pass_that_raises_has_failed_and_a_cancelled_one_does_not_count():
    metrics = Metrics()
    with metrics.timed_pass():
        pass
    for error in (ValueError, asyncio.CancelledError):
        with pytest.raises(error), metrics.timed_pass():
            raise error
    found = lines(metrics)
    assert 'orca_operator_reconciles_total{result="succeeded"} 1.0' in found
    assert 'orca_operator_reconciles_total{result="failed"} 1.0' in found
    assert "orca_operator_reconcile_duration_seconds_count 2.0" in found


def test_the_depth_of_the_queue_is_read_at_each_scrape():
    metrics, waiting = Metrics(), [1, 2]
    metrics.watch_queue(lambda: len(waiting))
    assert "orca_operator_queue_depth 2.0" in lines(metrics)
    waiting.clear()
    assert "orca_operator_queue_depth 0.0" in lines(metrics)


def test_writes_by_verb_and_kind():
    metrics = Metrics()
    for verb, kind in (("patch", "Service"), ("patch", "Service"), ("delete", "Service"), ("create", "Event")):
        metrics.count_write(verb, kind)
    assert {line for line in lines(metrics) if "api_writes_total" in line} == {
        'orca_operator_api_writes_total{kind="Service",verb="patch"} 2.0',
        'orca_operator_api_writes_total{kind="Service",verb="delete"} 1.0',
        'orca_operator_api_writes_total{kind="Event",verb="create"} 1.0',
    }


def test_each_deployment_counts_under_one_reason():
    metrics = Metrics()
    metrics.set_reason(("default", "a"), "LoadingWeights")
    metrics.set_reason(("default", "b"), "Serving")
    metrics.set_reason(("default", "a"), "Serving")
    metrics.set_reason(("default", "a"), "Serving")
    assert {line for line in lines(metrics) if "orcadeployments" in line} == {
        'orca_operator_orcadeployments{reason="LoadingWeights"} 0.0',
        'orca_operator_orcadeployments{reason="Serving"} 2.0',
    }
    metrics.forget(("default", "a"))
    metrics.forget(("default", "a"))
    metrics.forget(("default", "unknown"))
    assert 'orca_operator_orcadeployments{reason="Serving"} 1.0' in lines(metrics)
