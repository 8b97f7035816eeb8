"""Runs a generation and returns its HTTP response: one JSON body, or server-sent events.

A `Format` builds the response objects of one route. A stream starts after the first piece, so that a refusal
has its own status code, but at the latest after COMMENT_SECONDS. A client that disconnects cancels its generation.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Coroutine, Iterator
from typing import Any, Protocol, TypeVar

from fastapi import Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel

from orca_master.bodies.openai_requests import GenerationRequest
from orca_master.endpoint import event_stream
from orca_master.endpoint.choice_run import Piece
from orca_master.endpoint.generation import Generation, Generator
from orca_master.endpoint.openai_answers import ErrorBody, ErrorDetail, Usage
from orca_master.endpoint.recorder import Recorder
from orca_master.errors import EngineError, EngineUnavailableError, QueueFullError, RequestError, RequestTimeoutError

CLIENT_CLOSED_REQUEST = 499
"""Status of nginx for a client that has disconnected; only visible in logs."""
KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    413: "invalid_request_error",
    429: "rate_limit_error",
}
EXTENSIONS = ("token_ids", "prompt_token_ids")
T = TypeVar("T")


class Format(Protocol):
    """Builds the response objects of one route."""

    def opening(self, generation: Generation) -> Iterator[BaseModel]:
        """Yield the chunks of a stream before the first piece."""

    def chunk(self, generation: Generation, piece: Piece) -> BaseModel:
        """Return the chunk of a piece, also of a piece without text."""

    def choice(self, generation: Generation, index: int, pieces: list[Piece]) -> BaseModel:
        """Return a complete choice of a response; `pieces` are all of its pieces."""

    def answer(self, generation: Generation, usage: Usage) -> BaseModel:
        """Return the response without its choices."""

    def usage_chunk(self, generation: Generation, usage: Usage) -> BaseModel:
        """Return the last chunk of a stream with usage."""


def error_response(
    status: int, message: str, param: str | None = None, code: str | None = None, retry_after: int = 1
) -> JSONResponse:
    """Return an error in OpenAI's shape. `retry_after`: seconds, for the statuses 429 and 503."""
    detail = ErrorDetail(message=message, type=KINDS.get(status, "server_error"), param=param, code=code)
    headers = {"Retry-After": str(retry_after)} if status in (429, 503) else None
    return JSONResponse(ErrorBody(error=detail).model_dump(), status, headers)


async def respond(
    request: Request,
    body: GenerationRequest,
    generator: Generator,
    generation: Generation,
    style: Format,
    recorder: Recorder | None = None,
) -> Response:
    """Run a generation and return its response in `style`; raise what `Generator.pieces` raises.

    With a recorder the events of a stream have numbers, from which a client can continue (Last-Event-ID).
    """
    pieces = generator.pieces(generation, recorder)
    if not body.stream:
        collected = await unless_gone(request, _collect(generation, pieces))
        if collected is None:
            return Response(status_code=CLIENT_CLOSED_REQUEST)
        usage = usage_of(generation, sum(map(len, collected)))
        return Response(await answer_of(generation, collected, usage, style), media_type="application/json")
    first = asyncio.create_task(_first(pieces))
    try:
        waited = await unless_gone(request, asyncio.wait({first}, timeout=event_stream.COMMENT_SECONDS))
        if first.done():
            first.result()  # raises a refusal
    except BaseException:
        first.cancel()
        raise
    if waited is None:
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        return Response(status_code=CLIENT_CLOSED_REQUEST)
    numbers = None if recorder is None else itertools.count(1)
    return event_stream.EventStream(events(generation, pieces, first, body.include_usage, style, numbers), first)


async def answer_of(generation: Generation, pieces: list[list[Piece]], usage: Usage, style: Format) -> bytes:
    """Return the response as JSON, without choices that have no piece yet.

    Yields to the event loop after each choice, because long choices take time.
    """
    choices = []
    for index, pieces_of_choice in enumerate(pieces):
        if not pieces_of_choice:
            continue
        choices.append(_json(_dump_choice(style.choice(generation, index, pieces_of_choice).model_dump())))
        await asyncio.sleep(0)
    answer = dump(style.answer(generation, usage))
    del answer["choices"]
    return f'{_json(answer)[:-1]},"choices":[{",".join(choices)}]}}'.encode()


def dump(answer: BaseModel) -> dict[str, Any]:
    """Return the wire form: without fields that were not requested, with OpenAI's nulls."""
    data = answer.model_dump()
    if data["usage"] is None:
        del data["usage"]
    data["choices"] = [_dump_choice(choice) for choice in data["choices"]]
    return data


def _dump_choice(choice: dict[str, Any]) -> dict[str, Any]:
    for name in EXTENSIONS:
        if choice[name] is None:
            del choice[name]
    for name in ("message", "delta"):
        if choice.get(name, 0) is None:
            del choice[name]
    if "delta" in choice:
        choice["delta"] = {name: value for name, value in choice["delta"].items() if value is not None}
    return choice


async def _first(pieces: AsyncIterator[Piece]) -> Piece:
    return await anext(pieces)


async def _collect(generation: Generation, pieces: AsyncIterator[Piece]) -> list[list[Piece]]:
    collected: list[list[Piece]] = [[] for _ in generation.choices]
    async for piece in pieces:
        collected[piece.index].append(piece)
    return collected


async def events(
    generation: Generation,
    pieces: AsyncIterator[Piece],
    first: asyncio.Task[Piece],
    include_usage: bool,
    style: Format,
    numbers: Iterator[int] | None,
) -> AsyncIterator[str]:
    """Yield server-sent events with ids from `numbers`; an error becomes the last event, without an id."""
    try:
        piece = await first
        for chunk in style.opening(generation):
            yield _event(_json(dump(chunk)), numbers)
        generated = 0
        while True:
            generated += 1
            yield _event(_json(dump(style.chunk(generation, piece))), numbers)
            try:
                piece = await anext(pieces)
            except StopAsyncIteration:
                break
        if include_usage:
            yield _event(_json(dump(style.usage_chunk(generation, usage_of(generation, generated)))), numbers)
        yield _event("[DONE]", numbers)
    except (EngineError, EngineUnavailableError, QueueFullError, RequestError, RequestTimeoutError) as error:
        codes = {
            EngineError: "engine_error",
            RequestTimeoutError: "request_timeout",
            QueueFullError: "queue_full",
            RequestError: "text_unavailable",
        }
        code = codes.get(type(error), "engine_unavailable")
        detail = ErrorDetail(message=str(error), type="server_error", code=code)
        yield _event(_json(ErrorBody(error=detail).model_dump()), None)
    finally:
        await pieces.aclose()  # type: ignore[attr-defined]


def _event(data: str, numbers: Iterator[int] | None) -> str:
    return f"data: {data}\n\n" if numbers is None else f"id: {next(numbers)}\ndata: {data}\n\n"


def _json(data: dict[str, Any]) -> str:
    return json.dumps(data, ensure_ascii=False, separators=(",", ":"))


def usage_of(generation: Generation, generated: int) -> Usage:
    """Return the usage of a generation with `generated` tokens so far."""
    prompt = generation.prompt_tokens
    return Usage(prompt_tokens=prompt, completion_tokens=generated, total_tokens=prompt + generated)


async def unless_gone(request: Request, work: Coroutine[Any, Any, T]) -> T | None:
    """Await `work`; if the client disconnects first, cancel it and return None."""
    task = asyncio.create_task(work)
    gone = asyncio.create_task(_gone(request))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        for pending in (task, gone):
            pending.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
