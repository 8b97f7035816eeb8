"""`under_vllm_names`: the metrics that vLLM has, under vLLM's own names, from values that were already read. Pure.

Endpoint pickers (Gateway API Inference Extension, llm-d) and dashboards for vLLM expect these names and the labels
`model_name` and `engine`. vLLM's `engine` numbers its data-parallel engines; a master is one engine, number 0.

Sources: https://docs.vllm.ai/en/v0.32.0/usage/metrics/, and vLLM's own dashboard,
https://github.com/vllm-project/vllm/blob/main/examples/observability/prometheus_grafana/grafana.json.
"""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.core import Metric

OWN_PREFIX, PREFIX = "orca:", "vllm:"
ENGINE = {"engine": "0"}
SAME = (
    "num_requests_running",
    "num_requests_waiting",
    "kv_cache_usage_perc",
    "cache_config_info",
    "prompt_tokens",
    "generation_tokens",
    "num_preemptions",
    "request_success",
    "time_to_first_token_seconds",
    "inter_token_latency_seconds",
    "e2e_request_latency_seconds",
    "request_queue_time_seconds",
    "request_prefill_time_seconds",
    "request_decode_time_seconds",
    "request_time_per_output_token_seconds",
    "request_prompt_tokens",
    "request_generation_tokens",
    "iteration_tokens_total",
)
"""Metrics with the same name after the prefix; counters without `_total`."""
OTHERS = {
    "kv_cache_usage_perc": "gpu_cache_usage_perc",
    "inter_token_latency_seconds": "time_per_output_token_seconds",
    "request_generation_tokens": "request_max_num_generation_tokens",
}
"""Further names. The first two are vLLM's earlier names. In vLLM the third is the length of a request's longest choice;
here each choice is a request of its own."""


def under_vllm_names(families: Iterable[Metric]) -> list[Metric]:
    """Return the metrics of `families` that vLLM has, with the label `engine`, in the order of `families`.

    They have no `_created` series, which vLLM's readers do not use.
    """
    copies = []
    for family in families:
        name = family.name.removeprefix(OWN_PREFIX)
        if name in SAME:
            copies += [_copy(family, known) for known in (name, OTHERS.get(name)) if known is not None]
    return copies


def _copy(family: Metric, name: str) -> Metric:
    """Return `family` under the name `PREFIX + name`."""
    copy = Metric(PREFIX + name, family.documentation, family.type)
    copy.samples = [
        sample._replace(name=copy.name + sample.name.removeprefix(family.name), labels=sample.labels | ENGINE)
        for sample in family.samples
        if not sample.name.endswith("_created")
    ]
    return copy
