"""Speculative decoding: drafts are computed and accepted, and every request has the tokens that it has without them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from orca_contract.kv_blocks import BLOCK_SIZE
from orca_contract.topology import Topology
from orca_master.engine import measured_draft_costs
from orca_master.engine.config import EngineConfig
from orca_master.engine.measured_draft_costs import MeasuredDraftCosts
from support.checkpoints import make_prompts
from support.engines import engine_over, topology
from support.random_arrivals import SAMPLING, Case, play

NUM_TOKENS = 48


FEW = {"logit_bias": ((99, 30.0), (107, 30.0), (183, 30.0))}
"""Answers of three tokens repeat themselves, with and without a temperature; those of random weights seldom do."""


def requests() -> list[Case]:
    """Two thirds of the requests can have drafts; the other kinds of sampling read the tokens before."""
    prompts = make_prompts((7, 12, 20, 30, 9, 40, 8, 21, 64, 5, 18, 33))
    kinds = {}, {}, *SAMPLING
    return [(prompt, NUM_TOKENS, {**kinds[index % 6], **FEW}) for index, prompt in enumerate(prompts)]


@pytest.fixture(autouse=True)
def unmeasured(monkeypatch):
    """Leave the costs of drafts as they are before they have been measured, on every machine.

    Look-ahead costs nothing: beside it, few drafts would be worth their time here, where a third is accepted.
    """
    monkeypatch.setattr(measured_draft_costs, "LOOK_AHEAD", 0.0)
    monkeypatch.setattr(MeasuredDraftCosts, "note_rows", lambda self, seconds, rows: None)
    monkeypatch.setattr(MeasuredDraftCosts, "note_drafting", lambda self, pipeline, result: None)


@pytest.mark.parametrize(
    ("name", "ranks", "admission"),
    [
        ("llama-gqa-tied", (1, 1), "paged"),
        pytest.param("gpt2-head64-tied", (2, 1), "reserve", marks=pytest.mark.exhaustive),
        pytest.param("llama-gqa-tied", (1, 2), "paged", marks=pytest.mark.long),
        pytest.param("gpt2-head64-tied", (1, 1), "reserve", marks=pytest.mark.exhaustive),
        pytest.param("gpt2-head64-tied", (1, 2), "reserve", marks=pytest.mark.exhaustive),
        pytest.param("llama-gqa-tied", (2, 1), "paged", marks=pytest.mark.exhaustive),
    ],
)
def test_drafts_change_no_token(checkpoint, worker_pool, name, ranks, admission):
    partitions, tensor_parallel_size = ranks
    check(topology(checkpoint(name), worker_pool.addresses(partitions), tensor_parallel_size), admission)


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"dtype": "bfloat16"}, marks=pytest.mark.long),
        pytest.param({"kv_cache_dtype": "int8"}, marks=pytest.mark.exhaustive),
        pytest.param({"quantization": "int8"}, marks=pytest.mark.exhaustive),
        pytest.param({"kv_cache_dtype": "int8", "quantization": "w4a8"}, marks=pytest.mark.long),
    ],
)
def test_drafts_change_no_token_of_other_types(checkpoint, worker_pool, options):
    spec = topology(checkpoint("llama-gqa-tied"), worker_pool.addresses(1))
    check(spec.model_copy(update={"model": spec.model.model_copy(update=options)}), "paged")


@pytest.mark.parametrize(
    ("name", "ranks", "admission"),
    [
        ("gpt2-head64-tied", (1, 1), "paged"),
        pytest.param("gpt2-head64-tied", (1, 2), "paged", marks=pytest.mark.exhaustive),
        pytest.param("llama-gqa-tied", (2, 1), "reserve", marks=pytest.mark.long),
        pytest.param("llama-gqa-tied", (2, 2), "paged", marks=pytest.mark.exhaustive),
    ],
)
def test_a_draft_model_changes_no_token(checkpoint, worker_pool, name, ranks, admission):
    partitions, tensor_parallel_size = ranks
    spec = topology(checkpoint(name), worker_pool.addresses(partitions), tensor_parallel_size)
    check(with_draft_model(spec, checkpoint("qwen3-gqa-tied")), admission)


def test_what_a_draft_model_knows_is_accepted(checkpoint, worker_pool):
    """The draft model is the model itself: every draft is accepted, greedy or not, behind shared prefixes, too."""
    path = checkpoint("llama-gqa-tied")
    spec = with_draft_model(topology(path, worker_pool.addresses(1)), path)
    config = EngineConfig(deterministic=True, speculative_tokens=4)
    (prompt,) = make_prompts((40,))

    async def compare() -> None:
        async with engine_over(spec, config) as harness:
            for number, parameters in enumerate(({}, {"temperature": 0.9, "seed": 3}, {"temperature": 0.7, "seed": 4})):
                harness.submit(str(number), prompt, NUM_TOKENS, **parameters)
                tokens = await harness.collect(1)
                assert len(tokens[str(number)]) == NUM_TOKENS
            drafted, accepted = (sum(entry[place] for entry in harness.drafts) for place in (1, 2))
            assert drafted == accepted > 2 * NUM_TOKENS
            assert len(harness.batches) < 3 * NUM_TOKENS / 2
            assert any(entry.request.num_cached for _, batch in harness.batches for entry in batch.requests)

    asyncio.run(asyncio.wait_for(compare(), 240))


def with_draft_model(spec: Topology, path: Path) -> Topology:
    return spec.model_copy(update={"model": spec.model.model_copy(update={"draft_path": str(path)})})


def check(spec: Topology, admission: str) -> None:
    """Chunked prompts, all kinds of sampling, few blocks: with rewinds, cancels and preemption."""
    shared: dict[str, Any] = {"max_batch_size": 3, "token_budget": 48, "deterministic": spec.model.dtype == "float32"}
    drafts: dict[str, Any] = {"speculative_tokens": 6, "kv_slots": 12 * BLOCK_SIZE, "admission": admission}

    async def compare() -> None:
        async with engine_over(spec, EngineConfig(**shared)) as harness:
            expected = await play(harness, requests(), 0)
            assert not harness.drafts
        async with engine_over(spec, EngineConfig(**shared, **drafts)) as harness:
            for seed in range(3):
                harness.drafts.clear()
                assert await play(harness, requests(), seed) == expected
                drafted, accepted = (sum(entry[place] for entry in harness.drafts) for place in (1, 2))
                assert 0 < accepted < drafted
            assert (harness.preemptions > 0) == (admission == "paged")
            await asyncio.sleep(0.1)
            harness.assert_nothing_held()

    asyncio.run(asyncio.wait_for(compare(), 240))


def test_log_probabilities_are_those_without_drafts(checkpoint, worker_pool):
    spec = topology(checkpoint("llama-gqa-tied"), worker_pool.addresses(1))

    async def outputs(**options: Any) -> list[tuple[Any, ...]]:
        async with engine_over(spec, EngineConfig(deterministic=True, **options)) as harness:
            harness.submit("r", make_prompts((20,))[0], NUM_TOKENS, logprobs=2, **FEW)
            found = [await asyncio.wait_for(harness.outputs.get(), 60) for _ in range(NUM_TOKENS)]
            assert any(accepted for _, _, accepted in harness.drafts) == bool(options)
            return [(output.token, output.finish_reason, output.logprobs and (
                output.logprobs.sampled, list(output.logprobs.token), list(output.logprobs.logprob)
            )) for output in found]  # fmt: skip

    async def compare() -> None:
        expected = await outputs()
        assert await outputs(speculative_tokens=6) == expected
        assert [entry[1] for entry in expected[:-1]] == [None] * (NUM_TOKENS - 1)

    asyncio.run(compare())


def test_a_prompt_beside_drafts_has_its_own_log_probabilities(checkpoint, worker_pool):
    """With drafts, the entries of an iteration have other numbers than its requests."""
    spec = topology(checkpoint("llama-gqa-tied"), worker_pool.addresses(1))
    first, second = make_prompts((20, 30))

    async def of_prompt(**options: Any) -> list[float]:
        async with engine_over(spec, EngineConfig(deterministic=True, prefix_caching=False, **options)) as harness:
            harness.submit("drafted", first, 90, logit_bias=((99, 90.0),))
            async with asyncio.timeout(60):
                while options and len(harness.drafts) < 5:
                    await harness.outputs.get()
            harness.submit("prompt", second, 1, prompt_logprobs=1)
            await harness.collect(2)
            mixed = (batch.requests for _, batch in harness.batches if len(batch.requests) == 2)
            drafted_beside = any(entries[0].draft and entries[1].request.request_id == "prompt" for entries in mixed)
            assert drafted_beside == bool(options)
            return [value for part in harness.prompt_logprobs["prompt"] for value in part.logprob]

    async def compare() -> None:
        expected = await of_prompt()
        assert len(expected) == len(second) - 1
        assert await of_prompt(speculative_tokens=4) == expected

    asyncio.run(compare())
