"""Tokens do not depend on who else is in the batch, and nothing is held when all have gone."""

from __future__ import annotations

import asyncio
import random

import httpx
import pytest
from orca_master.engine.config import EngineConfig
from support.checkpoints import VARIANTS, VOCABULARY, make_prompts
from support.engines import engine_over, topology
from support.served import eventually, serve, value
from support.variants import ONE_PER_FAMILY, one_short

NAME = "llama-gqa-tied"


@pytest.mark.parametrize("admission", ["reserve", pytest.param("paged", marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("variant", one_short(VARIANTS, NAME, ONE_PER_FAMILY))
def test_alone_and_in_a_batch_of_16(variant, admission, checkpoint, worker_pool):
    """Greedy and sampled requests of many lengths: the same tokens alone as among 15 others."""
    # The first two start alone, one on each partition; from then on 16 of the 17 share a batch.
    prompts = make_prompts((*range(1, 150, 10), 64, 80))

    def submit(harness, index):
        sampling = {"temperature": 0.9, "top_p": 0.8, "seed": index} if index % 2 else {}
        harness.submit(str(index), prompts[index], 16, **sampling)

    async def run():
        config = EngineConfig(max_batch_size=16, balanced=False, admission=admission)
        async with engine_over(topology(checkpoint(variant), worker_pool.addresses(2)), config) as harness:
            alone = {}
            for index in range(17):
                submit(harness, index)
                alone |= await harness.collect(1)
            for index in range(17):
                submit(harness, index)
            together = await harness.collect(17)
            assert max(len(batch.requests) for _, batch in harness.batches) == 16
            harness.assert_nothing_held()
        assert together == alone

    asyncio.run(run())


@pytest.mark.long
def test_50_requests_of_20_clients_a_third_cancelled(checkpoint):
    """Every finished request equals its solo run; no slot, block or row is held at the end."""
    shuffler = random.Random(5)
    bodies = [
        {
            "model": NAME,
            "prompt": [shuffler.randrange(1, VOCABULARY) for _ in range(shuffler.randrange(1, 120))],
            "max_tokens": shuffler.randrange(1, 60),
            "temperature": shuffler.choice([0, 0.8]),
            "seed": number,
            "ignore_eos": True,
            "return_token_ids": True,
        }
        for number in range(50)
    ]

    async def ask(client, number):
        """Return the tokens, or None for a request that is dropped on the way."""
        if number % 3 == 1:
            # Half of those to be dropped stream and leave after the first event, half give up while waiting.
            try:
                if number % 2:
                    async with client.stream(
                        "POST", "/v1/completions", json={**bodies[number], "stream": True}
                    ) as stream:
                        await anext(stream.aiter_lines())
                else:
                    await asyncio.wait_for(client.post("/v1/completions", json=bodies[number]), 0.05)
            except TimeoutError:
                pass
            return None
        answer = await client.post("/v1/completions", json=bodies[number])
        assert answer.status_code == 200, answer.text
        return answer.json()["choices"][0]["token_ids"]

    async def run(url):
        async with httpx.AsyncClient(base_url=url, timeout=120) as client:
            gate = asyncio.Semaphore(20)

            async def limited(number):
                async with gate:
                    return await ask(client, number)

            together = await asyncio.gather(*(limited(number) for number in range(50)))
            kept = [number for number in range(50) if number % 3 != 1]
            assert [number for number, tokens in enumerate(together) if tokens is not None] == kept
            for number in kept:
                assert await ask(client, number) == together[number]

    # Few slots, so that requests also wait for admission.
    with serve(
        checkpoint(NAME), "--pipeline-parallel-size", "2", "--max-batch-size", "4", "--kv-slots", "960"
    ) as served:
        asyncio.run(run(served.url))

        def nothing_held():
            metrics = httpx.get(f"{served.url}/metrics").text
            names = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
            return all(value(metrics, name) == 0 for name in names)

        assert eventually(nothing_held)
