"""Stored responses of the same API key: GET, with the stream of a background response, DELETE, cancel, input items."""

from __future__ import annotations

from operator import itemgetter
from typing import Annotated, Any, Literal

from fastapi import FastAPI, Query, Request, Response
from starlette.exceptions import HTTPException
from typing_extensions import TypedDict

from orca_master.endpoint.background_stream import stored_stream
from orca_master.endpoint.endpoint import Endpoint
from orca_master.endpoint.listing import page_of
from orca_master.endpoint.middleware import owner_of
from orca_master.endpoint.response_objects import ResponseObject, wire_json
from orca_master.endpoint.response_record import input_of, response_of
from orca_master.endpoint.response_store import MAX_NUMBER, RESPONSE_ID, FoundResponse, Phase
from orca_master.errors import RequestError

MAX_LISTED = 100
"""Maximum items of one page of a response's input."""


class DeletedResponse(TypedDict):
    """Response of DELETE."""

    id: str
    object: Literal["response"]
    deleted: bool


class InputItemList(TypedDict):
    """Response of /v1/responses/{response_id}/input_items; the ids are null without items."""

    object: Literal["list"]
    data: list[dict[str, Any]]
    first_id: str | None
    last_id: str | None
    has_more: bool


def add_stored_responses(app: FastAPI, endpoint: Endpoint) -> None:
    """Add the routes."""

    async def find(response_id: str, request: Request) -> FoundResponse:
        found = None
        if RESPONSE_ID.fullmatch(response_id):
            found = await endpoint.responses.get(owner_of(request), response_id)
        if found is None:
            raise HTTPException(404, _unknown(response_id))
        return found

    @app.get("/v1/responses/{response_id}", response_model=ResponseObject)
    async def stored_response(
        response_id: str,
        request: Request,
        stream: bool = False,
        starting_after: Annotated[int, Query(ge=0, le=MAX_NUMBER)] | None = None,
    ) -> Response:
        """Return a stored response; with `stream` the events of a background response after `starting_after`."""
        if starting_after is not None and not stream:
            raise RequestError("starting_after: is only allowed with stream=true", "starting_after")
        found = await find(response_id, request)
        if not stream:
            return _json(response_of(found))
        if not found.num_events:
            raise RequestError(
                "stream: only a response that was requested with background: true and stream: true can be streamed "
                "again: leave stream out",
                "stream",
            )
        after = -1 if starting_after is None else starting_after
        return stored_stream(endpoint.responses, endpoint.background, owner_of(request), response_id, after)

    @app.post("/v1/responses/{response_id}/cancel", response_model=ResponseObject)
    async def cancel_response(response_id: str, request: Request) -> Response:
        """Cancel a background response; one that has ended is returned as it is."""
        found = await find(response_id, request)
        if found.phase is Phase.STORED:
            raise RequestError(
                "response_id: only a response that was requested with background: true can be cancelled: close the "
                "connection of others",
                "response_id",
            )
        await endpoint.responses.cancel(owner_of(request), response_id)
        return _json(response_of(await find(response_id, request)))

    @app.delete("/v1/responses/{response_id}", response_model=DeletedResponse)
    async def delete_response(response_id: str, request: Request) -> Response:
        """Delete a stored response, and cancel it if it runs; those that continue it can no longer be continued."""
        known = RESPONSE_ID.fullmatch(response_id)
        if not known or not await endpoint.responses.delete(owner_of(request), response_id):
            raise HTTPException(404, _unknown(response_id))
        return _json(DeletedResponse(id=response_id, object="response", deleted=True))

    @app.get("/v1/responses/{response_id}/input_items", response_model=InputItemList)
    async def input_items(
        response_id: str,
        request: Request,
        after: str | None = None,
        limit: Annotated[int, Query(ge=1, le=MAX_LISTED)] = 20,
        order: Literal["asc", "desc"] = "desc",
    ) -> Response:
        """Return the items of the request of a stored response, without those of earlier responses."""
        items = input_of((await find(response_id, request)).data)
        ordered = items[::-1] if order == "desc" else items
        return _json(page_of(ordered, itemgetter("id"), dict, after, limit))


def _unknown(response_id: str) -> str:
    return (
        f"the response {response_id[:80]!a} is not stored: it was not used for too long or made room for others, or "
        "another API key made it"
    )


def _json(value: Any) -> Response:
    return Response(wire_json(value), media_type="application/json")
