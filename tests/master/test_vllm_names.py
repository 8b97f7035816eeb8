"""Copies of metrics under vLLM's names: the same values, the label `engine`, nothing that vLLM does not have."""

from __future__ import annotations

from orca_master.metrics.prometheus import Metrics
from orca_master.metrics.vllm_names import OTHERS, SAME, under_vllm_names
from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.parser import text_string_to_metric_families


def test_a_copy_has_vllms_name_the_engine_and_the_same_value():
    registry = CollectorRegistry()
    Counter("orca:prompt_tokens", "Prompt tokens", ["model_name"], registry=registry).labels("m").inc(7)
    (copy,) = under_vllm_names(registry.collect())
    assert (copy.name, copy.type, copy.documentation) == ("vllm:prompt_tokens", "counter", "Prompt tokens")
    (sample,) = copy.samples
    assert (sample.name, sample.value) == ("vllm:prompt_tokens_total", 7)
    assert sample.labels == {"model_name": "m", "engine": "0"}


def test_the_original_stays_as_it_is():
    registry = CollectorRegistry()
    Gauge("orca:num_requests_running", "", ["model_name"], registry=registry).labels("m")
    families = list(registry.collect())
    under_vllm_names(families)
    assert [(family.name, family.samples[0].labels) for family in families] == [
        ("orca:num_requests_running", {"model_name": "m"})
    ]


def test_metrics_that_vllm_does_not_have_are_not_copied():
    registry = CollectorRegistry()
    Gauge("orca:expected_wait_seconds", "", registry=registry)
    assert under_vllm_names(registry.collect()) == []


def test_a_metric_with_an_earlier_name_has_both():
    registry = CollectorRegistry()
    Gauge("orca:kv_cache_usage_perc", "", registry=registry).set(0.5)
    copies = under_vllm_names(registry.collect())
    assert [copy.samples[0].name for copy in copies] == ["vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"]
    assert [copy.samples[0].value for copy in copies] == [0.5, 0.5]


def names(metrics: Metrics) -> set[str]:
    return {family.name for family in text_string_to_metric_families(metrics.render().decode())}


def test_a_scrape_has_them_unless_they_are_off():
    copied = {name for name in names(Metrics("m")) if name.startswith("vllm:")}
    assert copied == {"vllm:" + name for name in {*SAME, *OTHERS.values()}} - {
        f"vllm:{gauge}"
        for gauge in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "gpu_cache_usage_perc",
                      "cache_config_info")
    }, "without `watch` there are no gauges"  # fmt: skip
    assert not any(name.startswith("vllm:") for name in names(Metrics("m", vllm_names=False)))
