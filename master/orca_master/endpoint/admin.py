"""The probe port for the kubelet and the admin port for the operator (docs/contracts.md, section 6).

`GET /state` returns the engine's state, `PUT /topology` and `PUT /scheduler` change its configuration, `POST /drain`
starts draining. Every admin call needs the bearer token of the Secret `d-admin`.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import Annotated, Any

from fastapi import Depends, FastAPI, HTTPException, Query, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from orca_contract import routes
from orca_contract.message import VERSION, MessageT, UnknownFields, read
from orca_contract.scheduler import SchedulerKnobs
from orca_contract.state import LONGEST_WAIT, StateReport
from orca_contract.topology import Topology
from orca_protos.http import probes
from orca_protos.http_limits import ADMIN_LIMITS
from orca_protos.loop_watch import LoopWatch
from starlette.requests import ClientDisconnect

from orca_master.endpoint.admin_token import AdminToken
from orca_master.endpoint.body_limits import BodyLimits
from orca_master.endpoint.live_settings import LiveSettings, in_force
from orca_master.engine.engine_thread import EngineThread
from orca_master.engine.pipeline_set import RequestsUnfinishedError
from orca_master.engine.progress import progress_report
from orca_master.errors import ConfigurationError
from orca_master.journal.status import JournalStatus

logger = logging.getLogger(__name__)

BEARER = HTTPBearer(auto_error=False)


def report(engine: EngineThread, settings: LiveSettings, journal: JournalStatus) -> StateReport:
    """Return the response of `GET /state`."""
    snapshot, config = engine.engine.snapshot, engine.config
    return StateReport(
        contract_version=VERSION,
        state=snapshot.state,
        failure=snapshot.failure,
        draining=engine.draining,
        idle=engine.idle,
        running=snapshot.num_running,
        waiting=snapshot.num_waiting,
        topology=snapshot.topology,
        scheduler=settings.changed(config),
        pipelines=list(snapshot.pipelines),
        journal=journal.state,
        journal_failure=journal.failure,
        in_force=in_force(config),
        idle_seconds=round(engine.idle_seconds, 3),
        has_backlog=snapshot.has_backlog,
    )


def create_admin_app(engine: EngineThread, token: AdminToken, journal: Callable[[], JournalStatus]) -> FastAPI:
    """Return the admin port's application. `journal` returns the present state of the journal."""

    async def authorized(bearer: Annotated[HTTPAuthorizationCredentials | None, Depends(BEARER)]) -> None:
        if bearer is None or not token.matches(bearer.credentials):
            message = "the admin port needs the bearer token of the deployment's admin Secret"
            raise HTTPException(401, message, {"WWW-Authenticate": "Bearer"})

    app = FastAPI(title="ORCA admin", openapi_url=None, dependencies=[Depends(authorized)])
    app.add_middleware(BodyLimits, limits=ADMIN_LIMITS)
    unknown_fields = UnknownFields(logger)
    settings = LiveSettings(engine.config)

    def response() -> dict[str, Any]:
        return report(engine, settings, journal()).wire()

    async def body(model: type[MessageT], request: Request) -> MessageT:
        try:
            message, unknown = read(model, await request.body())
        except ValueError as error:
            raise HTTPException(422, str(error)) from error
        except ClientDisconnect as error:
            raise HTTPException(400, "the client has disconnected") from error
        unknown_fields.log(f"PUT {request.url.path}", unknown)
        return message

    @app.get(routes.STATE)
    async def state(wait: Annotated[float, Query(ge=0, le=LONGEST_WAIT)] = 0.0) -> dict[str, Any]:
        """Return the engine's state, with `wait` as soon as an accepted request is unfinished, or after that time."""
        if wait:
            await engine.wait_for_request(wait)
        return response()

    @app.put(routes.TOPOLOGY)
    async def topology(request: Request) -> dict[str, Any]:
        """Add and remove pipelines."""
        new_topology = await body(Topology, request)
        if refusal := new_topology.refusal():
            raise HTTPException(422, refusal)
        try:
            await engine.apply(new_topology)
        except ConfigurationError as error:
            raise HTTPException(409, str(error)) from error
        except RequestsUnfinishedError as error:
            raise HTTPException(423, str(error)) from error
        return response()

    @app.put(routes.SCHEDULER)
    async def scheduler(request: Request) -> dict[str, Any]:
        """Change limits, policies and timeouts."""
        knobs = await body(SchedulerKnobs, request)
        try:
            config = settings.change(engine.config, knobs)
        except ConfigurationError as error:
            raise HTTPException(409, str(error)) from error
        await engine.reconfigure(config)
        return response()

    @app.post(routes.DRAIN, status_code=202)
    async def drain() -> dict[str, Any]:
        """Refuse new requests from now on; `idle` becomes true when all requests have ended."""
        engine.begin_drain()
        return response()

    return app


def create_probes(engine: EngineThread, is_joined: Callable[[], bool]) -> Any:
    """Return the probe port's application. Call it on the endpoint's event loop, which `/livez` watches.

    `is_joined`: whether a process serves the API port, this one or an API process.
    """
    endpoint_loop = LoopWatch()

    async def startupz() -> tuple[int, str]:
        return 200, "ok\n"

    async def livez() -> tuple[int, str]:
        if endpoint_loop.stuck():
            return 503, "the endpoint's loop does not answer\n"
        alive = await engine.alive()
        return (200, "ok\n") if alive else (503, "the engine's loop does not answer\n")

    async def readyz() -> tuple[int, str]:
        reason = engine.status.not_ready or ("" if is_joined() else "no API process is connected")
        return (503, f"{reason}\n") if reason else (200, "ok\n")

    async def progressz() -> tuple[int, str]:
        status = engine.status
        return 200, json.dumps(progress_report(status.state, status.serves, status.progress).wire()) + "\n"

    async def metrics() -> tuple[int, str]:
        return 200, (await engine.metrics()).decode()

    return probes(
        {
            routes.STARTUP: startupz,
            routes.LIVE: livez,
            routes.READY: readyz,
            routes.PROGRESS: progressz,
            routes.METRICS: metrics,
        }
    )
