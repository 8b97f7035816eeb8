"""The routes of /v1/batches, of the same API key. The runner answers the lines (batches/batch_run.py)."""

from __future__ import annotations

from operator import attrgetter
from typing import Annotated

from fastapi import FastAPI, Query, Request, Response
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from orca_master.batches.records import BatchRecord
from orca_master.bodies.batch_requests import BatchRequest
from orca_master.endpoint.endpoint import Endpoint
from orca_master.endpoint.file_routes import batches_of, disk_errors
from orca_master.endpoint.listing import page_of
from orca_master.endpoint.middleware import owner_of
from orca_master.errors import RequestError

MOST_LISTED = 100


def add_batches(app: FastAPI, endpoint: Endpoint) -> None:
    """Add the routes."""

    def find(batch_id: str, request: Request) -> BatchRecord:
        batch = batches_of(endpoint).batches.get(owner_of(request), batch_id)
        if batch is None:
            raise HTTPException(404, f"there is no batch {batch_id[:80]!a}, or another API key made it")
        return batch

    @app.post("/v1/batches")
    async def create_batch(body: BatchRequest, request: Request) -> Response:
        """Begin a batch of the requests in a file."""
        batches = batches_of(endpoint)
        file = batches.files.get(owner_of(request), body.input_file_id)
        if file is None or file.purpose != "batch":
            raise RequestError(
                f"input_file_id: there is no file {body.input_file_id[:80]!a} of the purpose batch: upload it at "
                "/v1/files",
                "input_file_id",
            )
        with disk_errors():
            batch = await batches.create(owner_of(request), body.endpoint, file, body.metadata)
        return JSONResponse(batch.wire())

    @app.get("/v1/batches")
    async def list_batches(
        request: Request,
        after: Annotated[str, Query(max_length=64)] | None = None,
        limit: Annotated[int, Query(ge=1, le=MOST_LISTED)] = 20,
    ) -> Response:
        """List batches, the latest first."""
        entries = batches_of(endpoint).batches.of(owner_of(request))
        return JSONResponse(page_of(entries, attrgetter("id"), BatchRecord.wire, after, limit))

    @app.get("/v1/batches/{batch_id}")
    async def retrieve_batch(batch_id: str, request: Request) -> Response:
        """Return the state of a batch."""
        return JSONResponse(find(batch_id, request).wire())

    @app.post("/v1/batches/{batch_id}/cancel")
    async def cancel_batch(batch_id: str, request: Request) -> Response:
        """Cancel a batch and keep its answers so far; one that has ended is returned as it is."""
        batch = find(batch_id, request)
        with disk_errors():
            await batches_of(endpoint).cancel(batch)
        return JSONResponse(batch.wire())
