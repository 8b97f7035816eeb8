"""`under_vllm_names`: the metrics of a scrape that vLLM has, under vLLM's own names. Pure.

Endpoint pickers (Gateway API Inference Extension, llm-d) and dashboards for vLLM expect these names and the labels
`model_name` and `engine`. vLLM's `engine` numbers its data-parallel engines; a master is one engine, number 0.

The copies are made from the text of a scrape, because an endpoint picker scrapes 20 times per second by default, and a
second rendering of the values takes seven times as long.

Sources: https://docs.vllm.ai/en/v0.32.0/usage/metrics/, and vLLM's own dashboard,
https://github.com/vllm-project/vllm/blob/main/examples/observability/prometheus_grafana/grafana.json.
"""

from __future__ import annotations

import re

SAME = (
    "num_requests_running",
    "num_requests_waiting",
    "kv_cache_usage_perc",
    "cache_config_info",
    "prompt_tokens_total",
    "generation_tokens_total",
    "num_preemptions_total",
    "prefix_cache_queries_total",
    "prefix_cache_hits_total",
    "spec_decode_num_drafts_total",
    "spec_decode_num_draft_tokens_total",
    "spec_decode_num_accepted_tokens_total",
    "request_success_total",
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
"""Metrics that have the same name after the prefix."""
OTHERS = {
    "kv_cache_usage_perc": "gpu_cache_usage_perc",
    "inter_token_latency_seconds": "time_per_output_token_seconds",
    "request_generation_tokens": "request_max_num_generation_tokens",
}
"""Further names. The first two are vLLM's earlier names. In vLLM the third is the length of a request's longest choice;
here each choice is a request of its own."""


def names_of(name: str) -> list[str]:
    """Return vLLM's names of the metric `orca:name`, without the prefix; [] if vLLM does not have the metric."""
    return [known for known in (name, OTHERS.get(name)) if known is not None] if name in SAME else []


def under_vllm_names(text: str) -> str:
    """Return copies of the metrics of a scrape that vLLM has, in Prometheus' text format, with the label `engine`.

    `text` has the format of prometheus_client, in which every series has a label. Its `_created` series are metrics of
    their own, which are not copied.
    """
    copies = []
    for family in f"\n{text}".split("\n# HELP orca:")[1:]:  # a newline in a label's value is escaped
        name = family[: family.index(" ")]
        copies += [_copy(family.rstrip("\n"), name, known) for known in names_of(name)]
    return "".join(copies)


def _copy(family: str, name: str, known: str) -> str:
    """Return the lines of a metric, without its first `# HELP orca:`, under the name `known`."""
    lines = family.replace(f"\n# TYPE orca:{name} ", f"\n# TYPE vllm:{known} ", 1)
    series = re.sub(rf"\norca:{name}(\w*){{", rf'\nvllm:{known}\1{{engine="0",', lines)
    return f"# HELP vllm:{known}{series[len(name) :]}\n"
