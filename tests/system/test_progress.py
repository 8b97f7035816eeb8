"""An engine that says that it serves and does not: readiness sees the standstill, and its end."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import httpx
from orca_master.endpoint.admin import create_probes
from orca_master.engine.config import EngineConfig
from orca_master.engine.engine_thread import EngineThread
from orca_master.engine.messages import Output, Submission
from orca_master.metrics.prometheus import Metrics
from orca_master.scheduling.batch import Proposal
from orca_master.scheduling.sampling_parameters import SamplingParameters
from support.engines import leaving_workers, topology

NAME = "gpt2-head64-tied"
BOUND = 60.0


async def until_ready_is(client: httpx.AsyncClient, status: int) -> httpx.Response:
    async with asyncio.timeout(BOUND):
        while (answer := await client.get("/readyz")).status_code != status:
            await asyncio.sleep(0.05)
    return answer


def test_readyz_fails_while_requests_wait_and_no_iteration_returns(checkpoint, monkeypatch, worker_pool):
    async def run() -> None:
        metrics = Metrics(NAME)
        config = leaving_workers(EngineConfig(stall_timeout=BOUND))
        engine = EngineThread(topology(checkpoint(NAME), worker_pool.addresses(1)), config, metrics, metrics)
        metrics.watch(engine.engine)
        outputs: asyncio.Queue[Output] = asyncio.Queue()
        transport = httpx.ASGITransport(create_probes(engine, lambda: True))
        try:
            await engine.start()
            async with httpx.AsyncClient(transport=transport, base_url="http://probes") as client:
                scheduler = engine.engine.scheduler
                with monkeypatch.context() as patched:
                    patched.setattr(scheduler, "select", lambda _: Proposal())
                    submission = Submission("a", (1, 2), 4, SamplingParameters(), frozenset())
                    await engine.submit(submission, outputs.put_nowait)
                    assert (await client.get("/readyz")).status_code == 200
                    await engine.reconfigure(replace(config, stall_timeout=0.2))
                    refused = await until_ready_is(client, 503)
                    assert "1 requests wait, and no iteration has returned" in refused.text
                    numbers = (await client.get("/progressz")).json()
                    assert numbers["stalled"]
                    assert numbers["waiting_requests"] == numbers["unfinished_requests"] == 1
                    assert numbers["iterations"] == 0
                    assert (await client.get("/livez")).status_code == 200
                await engine.reconfigure(config)
                async with asyncio.timeout(BOUND):
                    while (await outputs.get()).finish_reason is None:
                        pass
                await until_ready_is(client, 200)
                numbers = (await client.get("/progressz")).json()
                assert not numbers["stalled"]
                assert numbers["iterations"] >= 4
                assert numbers["unfinished_requests"] == 0
                engine.release("a", None)
        finally:
            await engine.stop("the test ends")

    asyncio.run(run())
