"""A server's /metrics, read as endpoint pickers and dashboards for vLLM read them (model_server_protocol.yaml)."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from orca_contract.kv_blocks import BLOCK_SIZE
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families
from support.checkpoints import with_tokenizer
from support.served import Served, eventually, serve

NAME = "demo/llama"
NUM_BLOCKS = 600
ENDLESS = {"prompt": "on and on", "max_tokens": 8000, "ignore_eos": True, "stream": True}
EXPECTED: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("model_server_protocol.yaml").read_text())


@pytest.fixture
def served(endless, tmp_path) -> Iterator[Served]:
    options = ("--max-batch-size", "1", "--kv-slots", str(NUM_BLOCKS * BLOCK_SIZE), "--max-expected-wait", "3600")
    with serve(with_tokenizer(endless, tmp_path / "text"), "--served-model-name", NAME, *options) as server:
        yield server


def scrape(served: Served) -> dict[str, Metric]:
    """Return the metric families of a scrape by name; fails if one has been written twice."""
    families = list(text_string_to_metric_families(httpx.get(f"{served.url}/metrics").text))
    by_name = {family.name: family for family in families}
    assert len(by_name) == len(families)
    return by_name


def gauge(served: Served, name: str) -> float:
    """Return the only value of a gauge, as an endpoint picker does."""
    (sample,) = scrape(served)[name].samples
    return sample.value


@pytest.mark.long
def test_a_server_without_a_request_has_every_metric_of_protocol_and_dashboard(served):
    families = scrape(served)
    for row in EXPECTED["protocol"]:
        family = families[row["metric"]]
        (sample,) = family.samples
        assert (family.type, sample.name) == (row["type"], row["metric"])
        assert set(sample.labels) >= {*EXPECTED["labels"], *row["labels"]}, row
    for name, kind in EXPECTED["types"].items():
        assert families[name].type == kind
    for family in families.values():
        for sample in family.samples if family.name.startswith("vllm:") else ():
            assert sample.labels["model_name"] == NAME
            assert sample.labels["engine"] == "0"
            assert not sample.name.endswith("_created")
    samples = [sample for family in families.values() for sample in family.samples]
    for name, labels in EXPECTED["dashboard"].items():
        matching = [sample for sample in samples if sample.name == name and sample.labels["model_name"] == NAME]
        assert matching, name
        assert all(set(sample.labels) >= set(labels) for sample in matching), name


@pytest.mark.long
def test_the_values_follow_a_running_and_a_waiting_request(served):
    assert gauge(served, "vllm:num_requests_running") == gauge(served, "vllm:num_requests_waiting") == 0
    assert gauge(served, "vllm:kv_cache_usage_perc") == 0
    (config,) = scrape(served)["vllm:cache_config_info"].samples
    assert (config.labels["block_size"], config.labels["num_gpu_blocks"]) == (str(BLOCK_SIZE), str(NUM_BLOCKS))
    assert (config.value, config.labels["enable_prefix_caching"]) == (1, "True")
    completions, timeout = f"{served.url}/v1/completions", httpx.Timeout(60)
    short = {**ENDLESS, "max_tokens": 2, "stream": False}
    with ThreadPoolExecutor(1) as pool:
        with httpx.stream("POST", completions, json=ENDLESS, timeout=timeout) as stream:
            lines = stream.iter_lines()  # its end would close the stream
            next(lines)
            waiting = pool.submit(httpx.post, completions, json=short, timeout=timeout)
            assert eventually(lambda: gauge(served, "vllm:num_requests_waiting") == 1)
            assert gauge(served, "vllm:num_requests_running") == 1
            used = gauge(served, "vllm:kv_cache_usage_perc")
            assert 8000 / BLOCK_SIZE <= used * NUM_BLOCKS <= NUM_BLOCKS, "the policy reserve holds the whole answer"
            assert used == gauge(served, "vllm:gpu_cache_usage_perc")
        assert waiting.result().status_code == 200
    assert eventually(lambda: gauge(served, "vllm:num_requests_running") == 0)
    families = scrape(served)
    for name in ("queue", "prefill"):
        values = {sample.name: sample.value for sample in families[f"vllm:request_{name}_time_seconds"].samples}
        assert values[f"vllm:request_{name}_time_seconds_count"] == 2
        assert values[f"vllm:request_{name}_time_seconds_sum"] > 0
    reasons = {entry.labels["finished_reason"]: entry.value for entry in families["vllm:request_success"].samples}
    assert reasons == {"stop": 0, "length": 1, "abort": 1, "error": 0, "fault": 0, "constraint": 0}
