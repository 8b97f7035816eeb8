"""Busy and idle seconds of partitions, on timings worked out by hand, and partitions without decode graphs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from orca_master.metrics.stage_metrics import StageMetrics
from orca_master.scheduling.batch import Batch
from orca_protos import engine_pb2 as pb
from prometheus_client import CollectorRegistry, generate_latest

SECOND = 10**9


def batch(*admitted: bool) -> Batch:
    """Only whether a request is new matters here."""
    return Batch("p", cast(Any, tuple(SimpleNamespace(admitted=each) for each in admitted)))


def test_a_gap_is_a_bubble_only_while_requests_are_under_way():
    registry = CollectorRegistry()
    metrics = StageMetrics(registry, "m")

    def timing(sequence: int, partition: int, started: float, ended: float) -> None:
        metrics.on_timing(
            "p",
            pb.StageTiming(
                sequence=sequence, partition=partition, started_ns=int(started * SECOND), ended_ns=int(ended * SECOND)
            ),
        )

    def seconds(kind: str, partition: int) -> float | None:
        labels = {"model_name": "m", "pipeline": "p", "partition": str(partition)}
        return registry.get_sample_value(f"orca:stage_{kind}_seconds_total", labels)

    metrics.on_dispatch(1, batch(True, True))
    metrics.on_dispatch(2, batch(False, False))
    timing(1, 1, 101.0, 102.0)  # another machine, another clock; its timings come first
    timing(2, 1, 102.5, 103.0)
    timing(1, 0, 1.0, 2.0)
    timing(2, 0, 2.25, 3.0)
    metrics.on_dispatch(3, batch(True))  # after a pause
    timing(3, 1, 201.0, 201.5)
    metrics.on_dispatch(4, batch(False, True))  # one joins
    timing(4, 1, 202.0, 203.0)
    timing(3, 0, 100.0, 100.5)
    timing(4, 0, 100.5, 101.0)
    assert (seconds("busy", 0), seconds("busy", 1)) == (2.75, 3.0)
    assert (seconds("bubble", 0), seconds("bubble", 1)) == (0.25, 1.0)


def test_a_removed_pipeline_leaves_no_series():
    """An alert on decode_graphs_refused would stay until the end of the master."""
    registry = CollectorRegistry()
    metrics = StageMetrics(registry, "m")
    metrics.on_dispatch(1, batch(True))
    for pipeline in ("p", "q"):
        metrics.on_timing(pipeline, pb.StageTiming(sequence=1, partition=0, graphs_refused=True))
    metrics.keep({"q"})
    metrics.keep({"q"})
    text = generate_latest(registry).decode()
    assert 'pipeline="p"' not in text
    assert 'decode_graphs_refused{model_name="m",partition="0",pipeline="q"} 1.0' in text
    metrics.on_timing("p", pb.StageTiming(sequence=9, partition=0, started_ns=SECOND, ended_ns=2 * SECOND))
    text = generate_latest(registry).decode()
    assert 'stage_busy_seconds_total{model_name="m",partition="0",pipeline="p"} 1.0' in text
    assert 'stage_bubble_seconds_total{model_name="m",partition="0",pipeline="p"}' not in text, (
        "no gap before the first"
    )


def test_a_partition_that_could_not_record_its_decode_iterations_is_shown_until_it_can():
    registry = CollectorRegistry()
    metrics = StageMetrics(registry, "m")

    def refused(partition: int) -> float | None:
        labels = {"model_name": "m", "pipeline": "p", "partition": str(partition)}
        return registry.get_sample_value("orca:decode_graphs_refused", labels)

    metrics.on_timing("p", pb.StageTiming(sequence=1, partition=0))
    metrics.on_timing("p", pb.StageTiming(sequence=1, partition=1, graphs_refused=True))
    assert (refused(0), refused(1)) == (0, 1)
    metrics.on_timing("p", pb.StageTiming(sequence=1, partition=1))
    assert refused(1) == 0
