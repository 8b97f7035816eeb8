"""The master's other ports: probes for the kubelet, and the admin port for the operator (docs/contracts.md, section 6).

`GET /state` says what the engine is and does, `PUT /topology` and `PUT /scheduler` change it, `POST /drain` ends it
gently. Every admin call needs the bearer token of the Secret `d-admin`.
"""

from __future__ import annotations

import hmac
import json
from dataclasses import asdict, replace
from typing import Annotated, Any, Literal

from fastapi import Depends, FastAPI, HTTPException
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from orca_protos.http import probes
from orca_protos.http_limits import ADMIN_LIMITS
from orca_protos.loop_watch import LoopWatch
from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel

from orca_master.body_limits import BodyLimits
from orca_master.engine_config import EngineConfig
from orca_master.engine_thread import EngineThread
from orca_master.errors import ConfigurationError
from orca_master.keeper import PipelineKeeper
from orca_master.pipeline import Phase
from orca_master.progress import progress_report
from orca_master.topology import Positive, Topology

BEARER = HTTPBearer(auto_error=False)


class _Wire(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="forbid")


class SchedulerKnobs(_Wire):
    """What may change while the engine runs; what is left out stays."""

    max_batch_size: Positive | None = None
    token_budget: Positive | None = None
    max_queue_depth: Positive | None = None


class FailureState(_Wire):
    """The latest failure of a pipeline; `at` in seconds since 1970."""

    at: float
    reason: str
    worker: str
    message: str
    recovery_seconds: float | None


class PipelineState(_Wire):
    """One pipeline of the topology."""

    id: str
    phase: str
    epoch: int
    loaded_workers: int
    last_failure: FailureState | None


class EngineReport(_Wire):
    """`GET /state`."""

    state: Literal["loading", "serving", "recovering", "failed", "stopped"]
    failure: str
    draining: bool
    idle: bool
    running: int
    waiting: int
    topology: Topology
    scheduler: SchedulerKnobs
    pipelines: list[PipelineState]


def report(engine: EngineThread) -> EngineReport:
    """Returns what `GET /state` says."""
    master, config = engine.engine, engine.config
    return EngineReport(
        state=master.state.value,
        failure=master.failure,
        draining=engine.draining,
        idle=engine.idle,
        running=master.scheduler.num_running,
        waiting=len(master.pool),
        topology=master.membership.topology,
        scheduler=SchedulerKnobs(
            max_batch_size=config.max_batch_size,
            token_budget=config.token_budget,
            max_queue_depth=config.max_queued_requests,
        ),
        pipelines=[_pipeline(keeper) for keeper in list(master.membership.keepers.values())],
    )


def _pipeline(keeper: PipelineKeeper) -> PipelineState:
    failure, serves = keeper.last_failure, keeper.pipeline.phase is Phase.SERVING
    return PipelineState(
        id=keeper.spec.id,
        phase=keeper.phase,
        epoch=keeper.pipeline.epoch,
        loaded_workers=len(keeper.spec.workers) if serves else keeper.pipeline.num_loaded,
        last_failure=FailureState(**asdict(failure)) if failure else None,
    )


def create_admin_app(engine: EngineThread, token: str) -> FastAPI:
    """Returns the admin port's application."""

    async def authorized(given: Annotated[HTTPAuthorizationCredentials | None, Depends(BEARER)]) -> None:
        if given is None or not hmac.compare_digest(given.credentials.encode(), token.encode()):
            raise HTTPException(401, "the admin port needs the bearer token of the deployment's admin Secret")

    app = FastAPI(title="ORCA admin", docs_url=None, redoc_url=None, dependencies=[Depends(authorized)])
    app.add_middleware(BodyLimits, limits=ADMIN_LIMITS)

    @app.get("/state")
    async def state() -> EngineReport:
        """What the engine is and does."""
        return report(engine)

    @app.put("/topology")
    async def topology(body: Topology) -> EngineReport:
        """Takes pipelines in and out."""
        try:
            await engine.apply(body)
        except ConfigurationError as error:
            raise HTTPException(409, str(error)) from error
        return report(engine)

    @app.put("/scheduler")
    async def scheduler(body: SchedulerKnobs) -> EngineReport:
        """Changes the scheduler's limits."""
        await engine.reconfigure(_changed(engine.config, body))
        return report(engine)

    @app.post("/drain", status_code=202)
    async def drain() -> EngineReport:
        """Takes no new requests from now on; `idle` says when those under way have ended."""
        engine.draining = True
        return report(engine)

    return app


def _changed(config: EngineConfig, knobs: SchedulerKnobs) -> EngineConfig:
    return replace(
        config,
        max_batch_size=knobs.max_batch_size or config.max_batch_size,
        token_budget=knobs.token_budget or config.token_budget,
        max_queued_requests=knobs.max_queue_depth or config.max_queued_requests,
    )


def create_probes(engine: EngineThread) -> Any:
    """Returns the probe port's application. Must be called on the endpoint's event loop, which it watches."""
    endpoint_loop = LoopWatch()

    async def startupz() -> tuple[int, str]:
        return 200, "ok\n"

    async def livez() -> tuple[int, str]:
        if endpoint_loop.stuck():
            return 503, "the endpoint's loop does not answer\n"
        alive = await engine.alive()
        return (200, "ok\n") if alive else (503, "the engine's loop does not answer\n")

    async def readyz() -> tuple[int, str]:
        reason = engine.status.unavailable
        return (503, f"{reason}\n") if reason else (200, "ok\n")

    async def progressz() -> tuple[int, str]:
        status = engine.status
        return 200, json.dumps(progress_report(status.state.value, status.serves, status.progress)) + "\n"

    async def metrics() -> tuple[int, str]:
        return 200, (await engine.metrics()).decode()

    return probes(
        {"/startupz": startupz, "/livez": livez, "/readyz": readyz, "/progressz": progressz, "/metrics": metrics}
    )
