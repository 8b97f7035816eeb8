"""Copies of metrics under vLLM's names: the same values, the label `engine`, nothing that vLLM does not have."""

from __future__ import annotations

from orca_master.metrics.prometheus import Metrics
from orca_master.metrics.vllm_names import OTHERS, SAME, names_of, under_vllm_names
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

STRANGE = 'a"b\\c{d}\n# HELP orca:num_requests_running x\norca:num_requests_running{'
"""A model's name that looks like lines of a scrape."""


def copies(registry: CollectorRegistry) -> list[Metric]:
    return list(text_string_to_metric_families(under_vllm_names(generate_latest(registry).decode())))


def test_a_copy_has_vllms_name_the_engine_and_the_same_value():
    registry = CollectorRegistry()
    Counter("orca:prompt_tokens", "Prompt tokens", ["model_name"], registry=registry).labels("m").inc(7)
    (copy,) = copies(registry)
    assert (copy.name, copy.type, copy.documentation) == ("vllm:prompt_tokens", "counter", "Prompt tokens")
    (sample,) = copy.samples
    assert (sample.name, sample.value) == ("vllm:prompt_tokens_total", 7)
    assert sample.labels == {"model_name": "m", "engine": "0"}


def test_a_histogram_keeps_its_series_and_values():
    registry = CollectorRegistry()
    histogram = Histogram("orca:inter_token_latency_seconds", "", ["model_name"], buckets=(1, 2), registry=registry)
    histogram.labels("m").observe(1.5)
    found = copies(registry)
    assert [copy.name for copy in found] == ["vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"]
    for copy in found:
        assert copy.type == "histogram"
        values = {sample.name.removeprefix(copy.name) + sample.labels.get("le", ""): sample.value
                  for sample in copy.samples}  # fmt: skip
        assert values == {"_bucket1.0": 0, "_bucket2.0": 1, "_bucket+Inf": 1, "_count": 1, "_sum": 1.5}


def test_a_models_name_is_never_taken_for_lines_of_the_scrape():
    registry = CollectorRegistry()
    Gauge("orca:num_requests_waiting", "", ["model_name"], registry=registry).labels(STRANGE).set(3)
    (copy,) = copies(registry)
    (sample,) = copy.samples
    assert (copy.name, sample.value) == ("vllm:num_requests_waiting", 3)
    assert sample.labels == {"model_name": STRANGE, "engine": "0"}


def test_metrics_that_vllm_does_not_have_are_not_copied():
    registry = CollectorRegistry()
    Gauge("orca:expected_wait_seconds", "", ["model_name"], registry=registry).labels("m")
    Gauge("orca:num_requests_running_elsewhere", "", ["model_name"], registry=registry).labels("m")
    assert under_vllm_names(generate_latest(registry).decode()) == ""


def names(metrics: Metrics, prefix: str) -> set[str]:
    lines = metrics.render().decode().splitlines()
    return {line.split()[2].removeprefix(prefix) for line in lines if line.startswith(f"# TYPE {prefix}")}


def test_a_scrape_has_them_unless_they_are_off():
    metrics = Metrics("m")
    expected = {known for name in names(metrics, "orca:") for known in names_of(name)}
    gauges = {"num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "gpu_cache_usage_perc",
              "cache_config_info"}  # fmt: skip
    assert names(metrics, "vllm:") == expected == {*SAME, *OTHERS.values()} - gauges, "`watch` adds the gauges"
    assert names(Metrics("m", vllm_names=False), "vllm:") == set()
