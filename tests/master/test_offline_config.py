"""Options of `LLM`: the bounds of the command line, and fields of EngineConfig that are none."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest
from orca_master.commands.offline_config import SYNONYMS, TYPES, offline_config
from orca_master.engine.config import EngineConfig
from orca_master.errors import ConfigurationError


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("memory_utilization", 90, "'90' is not a number above 0 and up to 1"),
        ("speculative_tokens", -3, "'-3' is not a whole number of at least 0"),
        ("target_itl", "x", "'x' is not a number of seconds above 0"),
        ("max_batch_size", 0, "'0' is not a whole number from 1 to 2147483647"),
        ("max_batch_size", True, "'True' is not a whole number"),
        ("max_batch_size", None, "'None' is not a whole number"),
        ("kv_slots", 16.5, "'16.5' is not a whole number"),
        ("kv_slots", 15, "15 is less than one block of 16 slots"),
        ("stall_timeout", float("inf"), "'inf' is not a whole number"),
        ("deterministic", "off", "'off' is not one of True, False"),
        ("prefix_caching", None, "'None' is not one of True, False"),
        ("admission", "pagd", "'pagd' is not one of reserve, paged"),
        ("scheduling_policy", "lifo", "'lifo' is not one of fcfs"),
        ("attention_backend", "fast", "'fast' is not one of auto, orca"),
        ("all_reduce", None, "'None' is not one of library"),
        ("memory_utilisation", 0.5, "no such option, choose from .*, memory_utilization, "),
        ("worker_owner", "engine", "no such option"),
    ],
)
def test_a_value_beyond_the_bounds_is_named(name, value, words):
    with pytest.raises(ConfigurationError, match=f"^{name}: {words}"):
        offline_config({name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("memory_utilization", 1),
        ("target_itl", 0.05),
        ("target_itl", None),
        ("token_budget", None),
        ("kv_slots", None),
        ("stall_timeout", 60.0),
        ("max_queued_requests", 5),
        ("deterministic", True),
        ("enforce_eager", False),
        ("iteration_log", Path("a") / "b"),
        ("admission", "paged"),
    ],
)
def test_values_within_the_bounds(name, value):
    assert getattr(offline_config({name: value}), name) == value


def test_options_are_fields_and_accept_their_own_defaults():
    defaults = {field.name: field.default for field in fields(EngineConfig) if field.name in TYPES}
    assert defaults.keys() == TYPES.keys()
    assert offline_config(defaults) == EngineConfig()


def test_no_number_of_prompts_is_refused_unless_the_program_says_so():
    assert min(offline_config({}).max_queued_requests, offline_config({}).max_queued_tokens) > 10**12
    no_limits = dict.fromkeys(("max_queued_requests", "max_queued_tokens", "max_expected_wait"))
    assert offline_config(no_limits) == offline_config({})


def test_options_under_the_names_of_vllm():
    config = offline_config(
        {
            "max_num_seqs": 3,
            "max_num_batched_tokens": 100,
            "gpu_memory_utilization": 0.5,
            "enable_prefix_caching": False,
            "trust_remote_code": True,
            "swap_space": 4,
            "seed": None,
        }
    )
    assert (config.max_batch_size, config.token_budget, config.memory_utilization) == (3, 100, 0.5)
    assert config.prefix_caching is False
    assert config == offline_config(
        {"max_batch_size": 3, "token_budget": 100, "memory_utilization": 0.5, "prefix_caching": False}
    )


def test_none_under_a_name_of_vllm_is_the_default():
    assert offline_config(dict.fromkeys(SYNONYMS)) == offline_config({})
    assert offline_config({"token_budget": 100, "max_num_batched_tokens": None}).token_budget == 100


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_num_seqs": 3, "max_batch_size": 3}, "max_batch_size: max_batch_size is the same option under another"),
        ({"max_batch_size": 3, "max_num_seqs": 3}, "max_num_seqs: max_batch_size is the same option under another"),
        ({"max_num_seqs": 0}, "max_batch_size: '0' is not a whole number from 1"),
        ({"seed": 1}, "seed: an option of vLLM that LLM does not have: requests have the field seed"),
        ({"block_size": 32}, "block_size=32: .*: blocks have 16 tokens"),
        ({"async_scheduling": False}, "async_scheduling=False: .*: give lookahead=False"),
        ({"hf_token": "secret"}, "hf_token: an option of vLLM that LLM does not have: download the model first"),
        ({"revision": "x"}, "revision: .*: orca fetch URI --into DIR --revision REVISION"),
        ({"num_gpu_blocks_override": 9}, "num_gpu_blocks_override: .*: give kv_slots N, 16 for each block"),
    ],
)
def test_options_of_vllm_that_are_refused(options, words):
    with pytest.raises(ConfigurationError, match=f"^{words}"):
        offline_config(options)
