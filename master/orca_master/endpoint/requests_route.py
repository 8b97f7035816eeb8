"""GET /v1/requests/{request_id}: an accepted request again, as JSON with the tokens so far or as server-sent events.

The id is that of the response or of the chunks of a stream. Events have numbers; a client that has lost its connection
continues after the event Last-Event-ID (WHATWG HTML, section 9.2), also with a restarted master.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import math
from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import FastAPI, Header, Request, Response
from starlette.exceptions import HTTPException

from orca_master.bodies.openai_requests import ChatCompletionRequest, CompletionRequest, GenerationRequest
from orca_master.endpoint.chat import ChatFormat
from orca_master.endpoint.completions import CompletionFormat
from orca_master.endpoint.decoded_requests import DecodedRequests
from orca_master.endpoint.endpoint import Endpoint
from orca_master.endpoint.event_stream import EventStream
from orca_master.endpoint.middleware import owner_of
from orca_master.endpoint.recorder import failure_of_record
from orca_master.endpoint.responding import Format, answer_of, events, status_and_code, usage_of
from orca_master.endpoint.resumable import ResumableRequests
from orca_master.endpoint.resumable_request import ResumableRequest
from orca_master.errors import RequestError

EVENTS = "text/event-stream"
MAX_EVENT = 2**53


def add_requests(app: FastAPI, endpoint: Endpoint, resumable: ResumableRequests) -> None:
    """Add the route."""

    @app.get("/v1/requests/{request_id}", response_model=None)
    async def accepted_request(
        request_id: str,
        request: Request,
        accept: Annotated[str, Header()] = "",
        last_event_id: Annotated[int, Header(ge=0, le=MAX_EVENT)] = 0,
    ) -> Response:
        """Return an accepted request with its tokens so far; `Accept: text/event-stream` continues its stream."""
        remembered = resumable.find(request_id, owner_of(request))
        if remembered is None:
            raise HTTPException(
                404, f"the request {request_id!r} is unknown: it ended too long ago, or another key asked"
            )
        style = _style(endpoint, remembered.body)
        if EVENTS in accept:
            if remembered.body.num_choices > remembered.body.n:
                raise RequestError("a request with best_of above n has no stream: ask for application/json", "accept")
            return _stream(endpoint, remembered, style, last_event_id)
        answer = await _answer(endpoint, resumable.decoded, remembered, style)
        return Response(answer, media_type="application/json")


def _style(endpoint: Endpoint, body: GenerationRequest) -> Format:
    if isinstance(body, ChatCompletionRequest):
        return ChatFormat(body, endpoint.name_of(body.model), endpoint.codec, endpoint.answers)
    assert isinstance(body, CompletionRequest)
    return CompletionFormat(body, endpoint.name_of(body.model), endpoint.codec)


def _stream(endpoint: Endpoint, remembered: ResumableRequest, style: Format, last_event: int) -> EventStream:
    generation = remembered.generation(endpoint.generator)
    pieces = remembered.pieces(generation)
    first = asyncio.ensure_future(anext(pieces))
    all_events = events(generation, pieces, first, remembered.body.usage_in_stream, style, itertools.count(1))
    return EventStream(_after(all_events, last_event), first)


async def _after(all_events: AsyncIterator[list[str]], last_event: int) -> AsyncIterator[list[str]]:
    """Yield the events with ids above `last_event`, and those without an id."""
    async with contextlib.aclosing(all_events) as remaining:  # type: ignore[type-var]
        async for together in remaining:
            if new := [event for event in together if _number(event) > last_event]:
                yield new


def _number(event: str) -> float:
    """Return the id of an event, infinity without an id."""
    return int(event[4 : event.index("\n")]) if event.startswith("id: ") else math.inf


async def _answer(endpoint: Endpoint, decoded: DecodedRequests, remembered: ResumableRequest, style: Format) -> bytes:
    """Return the state of a request, and the response as far as it is known, as JSON."""
    ended = remembered.ended
    generation = remembered.generation(endpoint.generator)
    pieces = await decoded.pieces(remembered, generation)
    usage = usage_of(generation, sum(map(len, pieces)), generation.num_cached(itertools.chain(*pieces)))
    response = await answer_of(generation, pieces, usage, style)
    status = "in_progress" if ended is None else "failed" if ended.error else "completed"
    failure = failure_of_record(ended.error) if ended is not None and ended.error else None
    state = {
        "id": remembered.accepted.request_id,
        "object": "request",
        "status": status,
        "error": None if failure is None else str(failure),
        "error_code": None if failure is None else status_and_code(failure)[1],
    }
    return f'{json.dumps(state)[:-1]}, "response": {response.decode()}}}'.encode()
