"""Prefix caching: fewer tokens are computed, and every request has the tokens that it has without the cache."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import httpx
import openai
import pytest
from orca_contract.kv_blocks import BLOCK_SIZE
from orca_contract.topology import Topology
from orca_master.engine.config import EngineConfig
from support.checkpoints import make_prompts, with_tokenizer
from support.engines import engine_over, topology
from support.random_arrivals import SAMPLING, Case, play
from support.served import serve, value

NAME = "llama-gqa-tied"


def requests() -> list[Case]:
    """Prompts with two common beginnings, one of them twice as a whole."""
    first, second = make_prompts((70, 40))
    ends = make_prompts((1, 9, 16, 30, 5, 33))
    prompts = [(*first, *end) for end in ends] + [(*second, *end) for end in ends] + [first, first, second]
    return [(prompt, 8 + 5 * (index % 3), SAMPLING[index % 4]) for index, prompt in enumerate(prompts)]


@pytest.mark.parametrize(
    "ranks",
    [
        (2, 1),
        pytest.param((1, 1), marks=pytest.mark.exhaustive),
        pytest.param((1, 2), marks=pytest.mark.long),
    ],
)
@pytest.mark.parametrize("admission", ["paged", pytest.param("reserve", marks=pytest.mark.long)])
@pytest.mark.parametrize("dtype", ["float32", pytest.param("bfloat16", marks=pytest.mark.long)])
def test_the_cache_changes_no_token(checkpoint, worker_pool, ranks, admission, dtype):
    partitions, tensor_parallel_size = ranks
    spec = topology(checkpoint(NAME), worker_pool.addresses(partitions), tensor_parallel_size)
    check(spec.model_copy(update={"model": spec.model.model_copy(update={"dtype": dtype})}), admission)


@pytest.mark.long
def test_a_cache_of_integers_changes_no_token(checkpoint, worker_pool):
    spec = topology(checkpoint(NAME), worker_pool.addresses(1))
    check(spec.model_copy(update={"model": spec.model.model_copy(update={"kv_cache_dtype": "int8"})}), "paged")


def check(spec: Topology, admission: str) -> None:
    """Chunked prompts, all kinds of sampling, few blocks: with rewinds, cancels, evictions and preemption.

    In float32 with `deterministic`, level L2 of exactness.
    """
    dtype = spec.model.dtype

    async def compare() -> None:
        shared: dict[str, Any] = {"max_batch_size": 4, "token_budget": 48, "deterministic": dtype == "float32"}
        async with engine_over(spec, EngineConfig(**shared, prefix_caching=False)) as harness:
            expected = await play(harness, requests(), 0)
            computed = sum(entry.num_tokens for _, batch in harness.batches for entry in batch.requests)
        config = EngineConfig(**shared, kv_slots=12 * BLOCK_SIZE, admission=admission)
        async with engine_over(spec, config) as harness:
            for seed in range(3):
                harness.batches.clear()
                assert await play(harness, requests(), seed) == expected
                uses = [batch.cache_use for _, batch in harness.batches]
                assert sum(use.num_hits for use in uses) > 0
                assert sum(use.num_evictions for use in uses) > 0
                assert sum(entry.num_tokens for _, batch in harness.batches for entry in batch.requests) < computed
            assert (harness.preemptions > 0) == (admission == "paged")
            await asyncio.sleep(0.1)
            harness.assert_nothing_held()

    asyncio.run(asyncio.wait_for(compare(), 240))


PROMPT = list(range(3, 90))
CACHED = 80


@pytest.fixture(scope="module")
def served(checkpoint, tmp_path_factory):
    model = with_tokenizer(checkpoint(NAME), tmp_path_factory.mktemp("prefix"))
    with serve(model, "--served-model-name", NAME, "--api-key", "one", "--api-key", "two") as server:
        yield server


def metric(served, name: str) -> float:
    return value(httpx.get(f"{served.url}/metrics", timeout=60).text, name)


def client(served, key: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{served.url}/v1", api_key=key, max_retries=0, timeout=60)


def complete(served, key: str, first: int, **options: Any) -> Any:
    prompt = [first, *PROMPT]
    return client(served, key).completions.create(model=NAME, prompt=prompt, max_tokens=4, temperature=0, **options)


def cached(answer: Any) -> int:
    return answer.usage.prompt_tokens_details.cached_tokens


@pytest.mark.long
def test_the_usage_names_the_cached_tokens_and_keys_share_nothing(served):
    before = metric(served, "prefix_cache_hits_total")
    first, second, other = (complete(served, key, 100) for key in ("one", "one", "two"))
    assert [cached(answer) for answer in (first, second, other)] == [0, CACHED, 0]
    assert first.choices[0].text == second.choices[0].text == other.choices[0].text
    assert metric(served, "prefix_cache_hits_total") == before + CACHED
    assert (
        f'vllm:prefix_cache_hits_total{{engine="0",model_name="{NAME}"}} {before + CACHED}'
        in httpx.get(f"{served.url}/metrics", timeout=60).text.splitlines()
    )


@pytest.mark.long
def test_a_salt_separates_the_requests_of_one_key(served):
    salted = [complete(served, "one", 101, extra_body={"cache_salt": salt}) for salt in ("a", "b", "a")]
    assert [cached(answer) for answer in salted] == [0, 0, CACHED]
    assert cached(complete(served, "one", 101)) == 0


@pytest.mark.long
def test_choices_compute_their_prompt_once(served):
    queries, hits = (metric(served, f"prefix_cache_{name}_total") for name in ("queries", "hits"))
    answer = complete(served, "one", 102, n=4, seed=1)
    assert cached(answer) == 0, "a prompt counts once, and the first choice computed it"
    assert metric(served, "prefix_cache_queries_total") == queries + 4 * (len(PROMPT) + 1)
    assert metric(served, "prefix_cache_hits_total") == hits + 3 * CACHED


@pytest.mark.long
def test_a_stream_ends_with_the_cached_tokens(served):
    complete(served, "one", 103)
    chunks = list(complete(served, "one", 103, stream=True, stream_options={"include_usage": True}))
    assert cached(chunks[-1]) == CACHED


@pytest.mark.long
def test_the_next_turn_of_a_chat_begins_with_the_last_one(served):
    turns: list[Any] = [{"role": "user", "content": "Once upon a time there was a fox who could not sleep."}]
    ask = client(served, "one").chat.completions.create
    answer = ask(model=NAME, messages=turns, max_tokens=8, temperature=0)
    turns += [{"role": "assistant", "content": answer.choices[0].message.content}, {"role": "user", "content": "And?"}]
    assert cached(ask(model=NAME, messages=turns, max_tokens=8, temperature=0)) >= BLOCK_SIZE


@pytest.mark.exhaustive
def test_api_processes_and_a_server_without_the_cache(checkpoint, tmp_path):
    model = with_tokenizer(checkpoint(NAME), tmp_path)
    with contextlib.ExitStack() as servers:
        urls = [
            servers.enter_context(serve(model, "--served-model-name", NAME, *options)).url
            for options in (["--api-processes", "2"], ["--no-enable-prefix-caching"])
        ]
        counts = []
        for url in urls:
            for _ in range(2):
                body = {"prompt": PROMPT, "max_tokens": 2, "temperature": 0}
                answer = httpx.post(f"{url}/v1/completions", json=body, timeout=60).json()
                counts.append(answer["usage"]["prompt_tokens_details"]["cached_tokens"])
        assert counts == [0, CACHED, 0, 0]
        text = httpx.get(f"{urls[1]}/metrics", timeout=60).text
        assert 'enable_prefix_caching="False"' in text
        assert "orca:prefix_cache_queries_total{" in text
