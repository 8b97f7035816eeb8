"""The probes of other servers: /ping, SageMaker's health check, and /load, vLLM's number of requests; without a key."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import httpx
from orca_contract.state import EngineState
from orca_master.endpoint.application import create_app
from orca_master.engine.engine_client import EngineStatus
from orca_master.engine.progress import Progress
from support.scripted_engine import END, Scripted, ScriptedEngine, make_model


class Loaded(ScriptedEngine):
    """Has a number of unfinished requests and may fail."""

    num_unfinished = 0
    state = EngineState.SERVING

    @property
    def status(self) -> EngineStatus:
        return replace(super().status, state=self.state, progress=Progress(num_unfinished=self.num_unfinished))


def test_ping_is_health_and_load_counts_the_requests_of_the_engine(tmp_path):
    async def run() -> None:
        scripted = Scripted(make_model(tmp_path, ""), END, engine=Loaded, api_keys=frozenset({"0" * 64}))
        engine = scripted.engine
        assert isinstance(engine, Loaded)
        transport = httpx.ASGITransport(create_app(scripted.endpoint))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            for state, status in ((EngineState.SERVING, 200), (EngineState.FAILED, 503)):
                engine.state = state
                health = await client.get("/health")
                for ping in (await client.get("/ping"), await client.post("/ping")):
                    assert (ping.status_code, ping.text) == (status, health.text)
            for count in (0, 3):
                engine.num_unfinished = count
                load = await client.get("/load")
                assert (load.status_code, load.json()) == (200, {"server_load": count})

    asyncio.run(run())
