"""Runs a generation and returns its HTTP response: one JSON body, or server-sent events (delivery.py).

A `Format` builds the response objects of one route.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from typing import Any, Protocol

from fastapi import Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel

from orca_master.bodies.openai_requests import GenerationRequest, UsageInStream
from orca_master.endpoint.best_of import best_choices
from orca_master.endpoint.choice_run import Piece
from orca_master.endpoint.delivery import deliver_body, deliver_stream, groups_of
from orca_master.endpoint.generation import Generation, Generator
from orca_master.endpoint.openai_answers import ErrorBody, ErrorDetail, PromptTokensDetails, Usage
from orca_master.endpoint.recorder import Recorder
from orca_master.engine.engine_client import EngineStatus
from orca_master.errors import EngineError, EngineUnavailableError, QueueFullError, RequestError, RequestTimeoutError

KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    413: "invalid_request_error",
    415: "invalid_request_error",
    429: "rate_limit_error",
}
STATUSES: dict[type[Exception], tuple[int, str | None]] = {
    EngineError: (500, "engine_error"),
    EngineUnavailableError: (503, "engine_unavailable"),
    QueueFullError: (429, "queue_full"),
    RequestError: (400, None),
    RequestTimeoutError: (408, "request_timeout"),
}
"""HTTP status and code of the errors that can end a stream, which is then HTTP 200 already."""
EXTENSIONS = ("stop_reason", "token_ids", "prompt_token_ids", "prompt_logprobs")
_PLACE = "\0"
"""Stands for the text of a chunk, the last string of its JSON, while the parts around the text are encoded."""
OPENING_CHUNKS = 8
"""Chunks before the first piece that are built and sent at a time."""


class Format(Protocol):
    """Builds the response objects of one route."""

    def opening(self, generation: Generation) -> Iterator[BaseModel]:
        """Yield the chunks of a stream before the first piece."""

    @property
    def only_text_varies(self) -> bool:
        """True if the chunks of a choice differ only in their text, except the last one."""

    def prompt_chunks(self, generation: Generation, piece: Piece) -> Iterator[BaseModel]:
        """Yield the chunks that precede a piece with the log probabilities of its prompt."""

    def chunk(self, generation: Generation, piece: Piece) -> BaseModel:
        """Return the chunk of a piece, also of a piece without text."""

    def choice(self, generation: Generation, index: int, pieces: list[Piece]) -> BaseModel:
        """Return a complete choice of a response; `pieces` are all of its pieces."""

    async def long_choice_fields(self, generation: Generation, index: int, pieces: list[Piece]) -> dict[str, str]:
        """Return the JSON of fields that replace those of `choice`; lets the event loop serve others meanwhile.

        The first choice of a prompt comes before its other ones.
        """

    def answer(self, generation: Generation, usage: Usage) -> BaseModel:
        """Return the response without its choices."""

    async def long_answer_fields(self, generation: Generation, first: Piece) -> dict[str, str]:
        """Return the JSON of fields that replace those of `answer`, by the first piece of the first choice."""

    def usage_chunk(self, generation: Generation, usage: Usage) -> BaseModel:
        """Return the last chunk of a stream with usage."""


def error_response(
    status: int, message: str, param: str | None = None, code: str | None = None, retry_after: int = 1
) -> JSONResponse:
    """Return an error in OpenAI's shape. `retry_after`: seconds, for the statuses 429 and 503."""
    detail = ErrorDetail(message=message, type=kind_of(status), param=param, code=code)
    headers = {"Retry-After": str(retry_after)} if status in (429, 503) else None
    return JSONResponse(ErrorBody(error=detail).model_dump(), status, headers)


def kind_of(status: int) -> str:
    """Return OpenAI's type of an error with this HTTP status."""
    return KINDS.get(status, "server_error")


def status_and_code(error: Exception) -> tuple[int, str | None]:
    """Return the HTTP status and the code of one of STATUSES; a RequestError has its own code."""
    status, code = next(failure for kind, failure in STATUSES.items() if isinstance(error, kind))
    return status, error.code if isinstance(error, RequestError) else code


def queue_full_response(message: str, status: EngineStatus) -> JSONResponse:
    """Return the refusal of a request for which the queue has no room; Retry-After is from the engine's estimate."""
    return error_response(429, message, code="queue_full", retry_after=status.retry_after_full)


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
        return await deliver_body(request, _whole(generation, pieces, style))
    numbers = None if recorder is None else itertools.count(1)
    return await deliver_stream(
        request, pieces, lambda first: events(generation, pieces, first, body.usage_in_stream, style, numbers)
    )


async def _whole(generation: Generation, pieces: AsyncIterator[list[Piece]], style: Format) -> bytes:
    """Return the response as JSON after the last piece."""
    collected: list[list[Piece]] = [[] for _ in generation.choices]
    async for together in pieces:
        for piece in together:
            collected[piece.index].append(piece)
    usage = usage_of(generation, sum(map(len, collected)), generation.num_cached(itertools.chain(*collected)))
    return await answer_of(generation, collected, usage, style)


async def answer_of(generation: Generation, pieces: list[list[Piece]], usage: Usage, style: Format) -> bytes:
    """Return the response as JSON, without choices that have no piece yet; `pieces`: of all generated choices.

    Yields to the event loop after each choice, because long choices take time.
    """
    choices = []
    generation, pieces = best_choices(generation, pieces)
    for index, pieces_of_choice in enumerate(pieces):
        if not pieces_of_choice:
            continue
        choice = _dump_choice(style.choice(generation, index, pieces_of_choice).model_dump())
        choices.append(_json_with(choice, await style.long_choice_fields(generation, index, pieces_of_choice)))
        await asyncio.sleep(0)
    fields = {"choices": f"[{','.join(choices)}]"}
    if pieces[0]:
        fields |= await style.long_answer_fields(generation, pieces[0][0])
    return _json_with(dump(style.answer(generation, usage)), fields).encode()


def _json_with(data: dict[str, Any], fields: dict[str, str]) -> str:
    """Return the JSON of an object in which `fields`, whose JSON is given, replace others and come last."""
    if not fields:
        return _json(data)
    others = _json({name: value for name, value in data.items() if name not in fields})
    replaced = ",".join(f'"{name}":{text}' for name, text in fields.items())
    return f"{others[:-1]},{replaced}}}"


def dump(answer: BaseModel) -> dict[str, Any]:
    """Return the wire form: without fields that were not requested, with OpenAI's nulls."""
    data = answer.model_dump()
    for name in ("usage", "prompt_logprobs"):
        if data.get(name, 0) is None:
            del data[name]
    data["choices"] = [_dump_choice(choice) for choice in data["choices"]]
    return data


def _dump_choice(choice: dict[str, Any]) -> dict[str, Any]:
    for name in EXTENSIONS:
        if choice.get(name, 0) is None:
            del choice[name]
    for name in ("message", "delta"):
        if choice.get(name, 0) is None:
            del choice[name]
    if "delta" in choice:
        choice["delta"] = _without_nulls(choice["delta"])
    elif "message" in choice:
        choice["message"] = _without_nulls(choice["message"]) | {"content": choice["message"]["content"]}
    return choice


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_nulls(entry) for name, entry in value.items() if entry is not None}
    return [_without_nulls(entry) for entry in value] if isinstance(value, list) else value


async def events(
    generation: Generation,
    pieces: AsyncIterator[list[Piece]],
    first: asyncio.Task[list[Piece]],
    usage_in_stream: UsageInStream,
    style: Format,
    numbers: Iterator[int] | None,
) -> AsyncIterator[list[str]]:
    """Yield server-sent events with ids from `numbers`; an error becomes the last event, without an id.

    The events of pieces that come together are yielded together.
    """
    chunk_json = ChunkJson(generation, style)
    ready: list[str] = []
    """Events that have not been yielded."""
    opening = style.opening(generation)
    generated = num_cached = 0

    def event_of(chunk: str) -> str:
        if usage_in_stream == "all":
            last = style.usage_chunk(generation, usage_of(generation, generated, num_cached))
            chunk = f'{chunk[:-1]},"usage":{_json(dump(last)["usage"])}}}'
        return _event(chunk, numbers)

    try:
        async with groups_of(first, pieces) as groups:
            async for together in groups:
                for chunk in opening:  # none from the second group on
                    ready.append(event_of(_json(dump(chunk))))
                    if len(ready) == OPENING_CHUNKS:
                        yield ready
                        ready = []
                        await asyncio.sleep(0)  # thousands of choices can repeat long prompts: others are served
                num_cached += generation.num_cached(together)
                for piece in together:
                    if piece.prompt_logprobs is not None:
                        for chunk in style.prompt_chunks(generation, piece):
                            yield [*ready, event_of(_json(dump(chunk)))]
                            ready = []
                    generated += 1
                    ready.append(event_of(chunk_json.of(piece)))
                yield ready
                ready = []
        if usage_in_stream != "none":
            usage = usage_of(generation, generated, num_cached)
            ready.append(_event(_json(dump(style.usage_chunk(generation, usage))), numbers))
        ready.append(_event("[DONE]", numbers))
        yield ready
    except tuple(STATUSES) as error:
        status, code = status_and_code(error)
        field = error.field if isinstance(error, RequestError) else None
        detail = ErrorDetail(message=str(error), type=kind_of(status), param=field, code=code)
        yield [*ready, _event(_json(ErrorBody(error=detail).model_dump()), None)]


class ChunkJson:
    """JSON of the chunks of one stream. The parts around a varying text are encoded once for each choice."""

    def __init__(self, generation: Generation, style: Format) -> None:
        self._generation = generation
        self._style = style
        self._only_text_varies = style.only_text_varies
        self._around: dict[int, tuple[str, str]] = {}
        """By choice: the JSON before and after that of the text."""

    def of(self, piece: Piece) -> str:
        """Return the JSON of a piece's chunk."""
        if piece.finish_reason is not None or not self._only_text_varies:
            return self._encode(piece)
        if (around := self._around.get(piece.index)) is None:
            before, _, after = self._encode(replace(piece, text=_PLACE)).rpartition(json.dumps(_PLACE))
            around = self._around[piece.index] = before, after
        return f"{around[0]}{json.dumps(piece.text, ensure_ascii=False)}{around[1]}"

    def _encode(self, piece: Piece) -> str:
        return _json(dump(self._style.chunk(self._generation, piece)))


def _event(data: str, numbers: Iterator[int] | None) -> str:
    return f"data: {data}\n\n" if numbers is None else f"id: {next(numbers)}\ndata: {data}\n\n"


def _json(data: dict[str, Any]) -> str:
    return json.dumps(data, ensure_ascii=False, separators=(",", ":"))


def usage_of(generation: Generation, generated: int, num_cached: int) -> Usage:
    """Return the usage of a generation with `generated` tokens so far, and `num_cached` cached prompt tokens."""
    prompt, generated = generation.prompt_tokens, min(generated, generation.max_tokens * len(generation.choices))
    return Usage(
        prompt_tokens=prompt,
        completion_tokens=generated,
        total_tokens=prompt + generated,
        prompt_tokens_details=PromptTokensDetails(cached_tokens=num_cached),
    )
