"""Estimates of bytes and FLOPs, against counts of small examples and of torch's models."""

from __future__ import annotations

import pytest
import torch
from orca_bench import estimates
from orca_bench.estimates import Estimate
from orca_worker.model_config import read_model_config
from transformers import AutoModelForCausalLM

WIDTH = 2


def test_a_lower_bound_is_the_larger_of_both_times():
    estimate = Estimate(100, 50) + Estimate(20, 10) * 2
    assert estimate == Estimate(140, 70)
    assert estimate.seconds(bandwidth=70, rate=70) == 2
    assert estimate.seconds(bandwidth=140, rate=7) == 10
    assert Estimate(3000, 6_000_000).beside(1.5) == "2.0 GB/s, 4000 GFLOP/s"
    assert Estimate(3000).beside(1.5) == "2.0 GB/s"


def test_attention_counts_the_pairs_of_each_token_and_the_slots_that_it_sees():
    parts, heads, kv_heads, head_dim = [(5, 1), (0, 4), (3, 2)], 6, 2, 8
    seen = [context + place + 1 for context, count in parts for place in range(count)]
    slots = sum(context + count for context, count in parts)
    queries_and_outputs = 2 * len(seen) * heads * head_dim
    expected = Estimate(
        (2 * slots * kv_heads * head_dim + queries_and_outputs) * WIDTH, sum(seen) * heads * head_dim * 2 * 2
    )
    assert estimates.attention(parts, heads, kv_heads, head_dim, WIDTH) == expected


def test_operations_count_their_operands_and_results():
    x, weight, y = torch.empty(3, 16), torch.empty(40, 16), torch.empty(3, 40)
    expected = sum(each.numel() for each in (x, weight, y)) * WIDTH
    assert estimates.linear(3, 16, 40, WIDTH) == Estimate(expected, 2 * 3 * 16 * 40)
    assert estimates.linear(3, 16, 40, WIDTH, 0.5).bytes == expected - weight.numel() * 1.5
    assert estimates.norm(3, 16, WIDTH).bytes == (48 + 48 + 16) * WIDTH
    assert estimates.norm(3, 16, WIDTH, 2).bytes == (48 + 48 + 32) * WIDTH
    assert estimates.added_norm(3, 16, WIDTH).bytes == (2 * 48 + 2 * 48 + 16) * WIDTH
    assert estimates.gated_activation(3, 16, WIDTH).bytes == (96 + 48) * WIDTH
    assert estimates.rotation(3, 2, 8, WIDTH).bytes == 2 * 48 * WIDTH + 2 * 24 * 4
    assert estimates.store(3, 2, 8, WIDTH).bytes == 4 * 48 * WIDTH
    keys_twice = 2 * 3 * 2 * 8 * WIDTH
    one_after_another = estimates.rotation(3, 6 + 2, 8, WIDTH) + estimates.store(3, 2, 8, WIDTH)
    assert estimates.rotation_and_store(3, 6, 2, 8, WIDTH).bytes == one_after_another.bytes - keys_twice
    written = (4 * 8 + 2 * 8) * 2 * (16 + 2) * 4
    assert estimates.partial_results([(4, 8), (1, 64), (2, 8)], 2, 16).bytes == 2 * written


@pytest.mark.parametrize("variant", ["gpt2-head64-tied", "llama-gqa-tied"])
def test_the_parameters_of_a_model_are_those_of_its_matrices(checkpoint, variant):
    path = checkpoint(variant)
    model, config = AutoModelForCausalLM.from_pretrained(path), read_model_config(path)
    matrices = [weight.numel() for weight in model.parameters() if weight.dim() == 2]
    tables = [table.weight.numel() for table in model.modules() if isinstance(table, torch.nn.Embedding)]
    layers, head = estimates.parameters(config)
    assert layers == sum(matrices) - sum(tables)
    assert head == model.get_output_embeddings().weight.numel()
    step = estimates.increments(config, 3, 10, WIDTH)
    cached = 2 * 3 * 10 * config.num_layers * config.num_kv_heads * config.head_dim
    assert step.bytes == (layers + head + cached) * WIDTH
    assert estimates.prompt(config, 7, WIDTH) == Estimate(layers * WIDTH, 14 * layers)
