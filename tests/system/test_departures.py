"""A worker of `orca serve` gets SIGTERM: its requests move to another pipeline at once, or finish on this one."""

from __future__ import annotations

import asyncio
import os
import signal

import httpx
import pytest
from support.served import Served, alive, descendants, eventually, serve, value, worker_pid

BODY = {"prompt": [3, 4, 5], "max_tokens": 400, "ignore_eos": True, "return_token_ids": True}
BODIES = [{**BODY, "temperature": 0.8 * (seed % 2), "seed": seed} for seed in range(6)]
"""Greedy and seeded requests."""


async def complete(served: Served, after: int, disturb) -> list[list[int]]:
    """Return the tokens of BODIES; call `disturb` when `after` tokens have been generated."""
    async with httpx.AsyncClient(base_url=served.url, timeout=120) as client:

        async def generated() -> float:
            return value((await client.get("/metrics")).text, "generation_tokens_total")

        async def ask(body: dict) -> list[int]:
            answer = await client.post("/v1/completions", json=body)
            assert answer.status_code == 200, answer.text
            return answer.json()["choices"][0]["token_ids"]

        before = await generated()
        running = [asyncio.create_task(ask(body)) for body in BODIES]
        while await generated() < before + after:
            await asyncio.sleep(0.02)
        disturb()
        return await asyncio.gather(*running)


def processes(served: Served) -> dict[int, set[int]]:
    """Return the process ids of each worker and its ranks."""
    workers = {index: worker_pid(served, index, "controller") for index in range(4)}
    return {index: {pid} | descendants(pid) for index, pid in workers.items()}


@pytest.mark.exhaustive
@pytest.mark.parametrize("victim", [2, 3])
def test_requests_of_a_departing_worker_move_to_the_other_pipeline(endless, victim):
    """The first or the last worker of the second pipeline. The worker ends at once, all others keep their processes."""
    with serve(endless, "-pp", "2", "--replicas", "2", "--dtype", "float32") as served:
        undisturbed = asyncio.run(complete(served, 0, lambda: None))
        before = processes(served)
        leaver = worker_pid(served, victim, "controller")
        tokens = asyncio.run(complete(served, 300, lambda: os.kill(leaver, signal.SIGTERM)))
        assert tokens == undisturbed
        assert [len(entry) for entry in tokens] == [400] * 6
        assert eventually(lambda: not alive(leaver), 20)
        assert eventually(lambda: any("pipeline local-1 serves: epoch 2" in line for line in served.log)), served.log
        after = processes(served)
        assert {index for index in range(4) if after[index] == before[index]} == set(range(4)) - {victim}
        (lost,) = [line for line in served.log if "is lost" in line]
        assert "pipeline local-1 is lost: worker unix:" in lost
        assert f"worker-{victim}.sock is shutting down: it got a signal to end" in lost


@pytest.mark.exhaustive
def test_the_only_pipeline_computes_until_its_worker_has_to_go(endless):
    """The requests finish within the grace; then the worker is replaced. A longer one continues with the new worker."""
    with serve(endless, "-pp", "2", "--dtype", "float32") as served:
        undisturbed = asyncio.run(complete(served, 0, lambda: None))
        leaver = worker_pid(served, 1, "controller")
        assert asyncio.run(complete(served, 300, lambda: os.kill(leaver, signal.SIGTERM))) == undisturbed
        assert eventually(lambda: any("pipeline local-0 serves: epoch 2" in line for line in served.log)), served.log
        assert not alive(leaver)
        assert asyncio.run(complete(served, 0, lambda: None)) == undisturbed


@pytest.mark.exhaustive
def test_a_server_whose_processes_all_get_the_signal_finishes_what_runs(endless):
    """As a supervisor may send it: to the workers first, and to the server afterwards."""
    with serve(endless, "-pp", "2", "--dtype", "float32") as served:
        undisturbed = asyncio.run(complete(served, 0, lambda: None))

        def end() -> None:
            for index in range(2):
                os.kill(worker_pid(served, index, "controller"), signal.SIGTERM)
            served.process.send_signal(signal.SIGTERM)

        assert asyncio.run(complete(served, 300, end)) == undisturbed
        assert served.process.wait(60) == 0
        assert not [line for line in served.log if "is lost" in line]
