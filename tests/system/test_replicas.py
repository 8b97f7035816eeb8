"""Two pipelines of two workers under one pool: admission in arrival order over both, both busy, tokens equal."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys

import httpx
import pytest
from orca_contract.topology import PipelineSpec
from orca_master.engine.config import EngineConfig
from orca_master.engine.engine_master import EngineMaster
from support.checkpoints import make_prompts
from support.engines import Harness, topology, worker_processes
from support.served import READY, descendants, serve, value

NAME = "qwen2-gqa-tied"


@pytest.mark.exhaustive
def test_one_pool_feeds_both_pipelines(checkpoint):
    prompts = make_prompts(tuple(range(5, 105, 5)))

    async def run(addresses):
        spec = topology(checkpoint(NAME), addresses[:2])
        pipelines = [PipelineSpec(id=f"p{index}", workers=addresses[2 * index : 2 * index + 2]) for index in range(2)]
        harness = Harness()
        config = EngineConfig(max_batch_size=2)
        shared = spec.model_copy(update={"pipelines": pipelines})
        harness.engine = EngineMaster(shared, config, harness.deliver, harness)
        try:
            for index, prompt in enumerate(prompts):
                harness.submit(str(index), prompt, 12)
            await harness.engine.start()
            together = await harness.collect(len(prompts))
            first_service = [s.request.arrival for _, batch in harness.batches for s in batch.requests if s.admitted]
            assert first_service == sorted(first_service) == list(range(len(prompts)))
            served = {name: {s.request.arrival for _, batch in harness.batches if batch.pipeline == name
                             for s in batch.requests} for name in ("p0", "p1")}  # fmt: skip
            assert not served["p0"] & served["p1"]
            assert min(map(len, served.values())) >= len(prompts) // 4, "both are busy"
            harness.assert_nothing_held()
            for index, prompt in enumerate(prompts):
                harness.submit(str(index), prompt, 12)
                assert (await harness.collect(1))[str(index)] == together[str(index)]
        finally:
            await harness.engine.stop("the test ends")

    with worker_processes(4) as (addresses, _):
        asyncio.run(asyncio.wait_for(run(addresses), 120))


@pytest.mark.exhaustive
def test_requests_move_when_a_pipeline_is_lost(checkpoint):
    """A worker of one pipeline is killed in the middle: every stream goes on, on the other, with the same tokens."""
    body = {"prompt": [3, 4, 5], "max_tokens": 400, "temperature": 0.8, "ignore_eos": True, "return_token_ids": True}

    async def run(served):
        async with httpx.AsyncClient(base_url=served.url, timeout=120) as client:

            async def ask(seed):
                answer = await client.post("/v1/completions", json={**body, "seed": seed})
                assert answer.status_code == 200, answer.text
                return answer.json()["choices"][0]["token_ids"]

            running = [asyncio.create_task(ask(seed)) for seed in range(6)]
            while value((await client.get("/metrics")).text, "generation_tokens_total") < 300:
                await asyncio.sleep(0.05)
            os.kill(_worker(served.process.pid, 3), signal.SIGKILL)
            interrupted = await asyncio.gather(*running)
            assert (await client.get("/readyz")).status_code == 200
            assert [await ask(seed) for seed in range(6)] == interrupted
            assert any("pipeline local-1 is lost" in line for line in served.log)

    with serve(checkpoint(NAME), "-pp", "2", "--replicas", "2") as served:
        asyncio.run(run(served))


@pytest.mark.exhaustive
def test_orca_master_with_two_pipelines_by_hand(checkpoint, references, tmp_path):
    (reference,) = references(NAME, (33,), 32)
    with worker_processes(4) as (addresses, _):
        (tmp_path / "config.yaml").write_text(f"model: {checkpoint(NAME)}\ndtype: float32\n")
        pipelines = [f"--pipeline={','.join(addresses[first : first + 2])}" for first in (0, 2)]
        master = subprocess.Popen(
            [sys.executable, "-m", "orca_master.cli", "master", *pipelines, "--port", "0",
             "--config", str(tmp_path / "config.yaml")],
            stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            url = next(found[1] for line in master.stderr if (found := READY.search(line)))
            body = {
                "prompt": [list(reference.prompt)] * 8, "max_tokens": 32, "temperature": 0, "ignore_eos": True,
                "return_token_ids": True,
            }  # fmt: skip
            answer = httpx.post(f"{url}/v1/completions", json=body, timeout=60)
            assert [choice["token_ids"] for choice in json.loads(answer.text)["choices"]] == [reference.greedy] * 8
            metrics = httpx.get(f"{url}/metrics").text
            assert 'pipeline="local-0"' in metrics
            assert 'pipeline="local-1"' in metrics
        finally:
            master.terminate()
            master.wait(30)


def _worker(pid: int, index: int) -> int:
    for child in descendants(pid):
        with open(f"/proc/{child}/cmdline", encoding="utf-8") as file:
            if f"worker-{index}.sock" in file.read():
                return child
    raise AssertionError(f"no worker {index}")
