"""Routes of the endpoint: /v1/completions, /v1/models, /livez, /readyz, /metrics.

Each request passes: pydantic (400 with the field's name) → prompt to tokens → `EngineThread.generate`
→ text, streamed as server-sent events or collected. A client that goes away cancels its request.
Every error leaves in OpenAI's shape.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import time
import uuid
from collections.abc import AsyncIterator
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse, StreamingResponse
from starlette.exceptions import HTTPException

from orca_master.engine import EngineState, Submission
from orca_master.engine_thread import EngineThread
from orca_master.errors import EngineUnavailableError, QueueFullError, RequestError
from orca_master.metrics import Metrics
from orca_master.openai_types import (
    Completion,
    CompletionChoice,
    CompletionRequest,
    ErrorBody,
    ErrorDetail,
    ModelCard,
    ModelList,
    Usage,
)
from orca_master.request import FinishReason, SamplingParameters
from orca_master.tokenizer import TextCodec

CLIENT_CLOSED_REQUEST = 499
"""nginx's status for a client that left; nobody receives it, logs show it."""
ERRORS: dict[int | str, dict[str, Any]] = {status: {"model": ErrorBody} for status in (400, 404, 429, 503)}


class Endpoint:
    """What the routes share: the engine, the codec, the model's public name."""

    def __init__(self, engine: EngineThread, codec: TextCodec, model_name: str, metrics: Metrics) -> None:
        self.engine = engine
        self.codec = codec
        self.model_name = model_name
        self.metrics = metrics
        self.created = int(time.time())

    def submission(self, body: CompletionRequest) -> Submission:
        """Returns what the engine is asked for; raises RequestError."""
        facts = self.engine.engine.facts
        prompt = self.codec.encode(body.prompt) if isinstance(body.prompt, str) else body.prompt
        if not prompt:
            raise RequestError("the prompt is empty: at least one token is needed", "prompt")
        if max(prompt) >= facts.vocabulary_size:
            raise RequestError(
                f"token id {max(prompt)} is not below the vocabulary size {facts.vocabulary_size}", "prompt"
            )
        seed = secrets.randbits(63) if body.seed is None else body.seed % 2**64
        return Submission(
            f"cmpl-{uuid.uuid4().hex}",
            tuple(prompt),
            body.max_tokens,
            SamplingParameters(body.temperature, body.top_p, seed),
            frozenset() if body.ignore_eos else self.codec.stop_token_ids,
        )

    async def choices(self, submission: Submission, body: CompletionRequest) -> AsyncIterator[CompletionChoice]:
        """Yields the answer piece by piece; the last one carries the finish reason."""
        decoder = self.codec.decoder()
        started = time.monotonic()
        first = True
        async for output in self.engine.generate(submission):
            assert output.token is not None
            if first:
                self.metrics.prompt_tokens.inc(len(submission.prompt))
                self.metrics.time_to_first_token.observe(time.monotonic() - started)
            self.metrics.generation_tokens.inc()
            reason = output.finish_reason
            if reason is not None:
                self.metrics.finished.labels(reason.value).inc()
                self.metrics.request_latency.observe(time.monotonic() - started)
            yield CompletionChoice(
                index=0,
                text=decoder.step(output.token),
                finish_reason="stop" if reason is FinishReason.STOP else "length" if reason else None,
                token_ids=[output.token] if body.return_token_ids else None,
                prompt_token_ids=list(submission.prompt) if first and body.return_token_ids else None,
            )
            first = False

    def completion(self, submission: Submission, choices: list[CompletionChoice], usage: Usage | None) -> Completion:
        """Returns an answer or chunk."""
        return Completion(
            id=submission.request_id,
            created=int(time.time()),
            model=self.model_name,
            choices=choices,
            usage=usage,
        )


def _usage(submission: Submission, generated: int) -> Usage:
    prompt = len(submission.prompt)
    return Usage(prompt_tokens=prompt, completion_tokens=generated, total_tokens=prompt + generated)


def error_response(status: int, message: str, param: str | None = None, code: str | None = None) -> JSONResponse:
    """Returns an error in OpenAI's shape."""
    kind = {400: "invalid_request_error", 404: "not_found_error", 429: "rate_limit_error"}.get(status, "server_error")
    detail = ErrorDetail(message=message, type=kind, param=param, code=code)
    headers = {"Retry-After": "1"} if status in (429, 503) else None
    return JSONResponse(ErrorBody(error=detail).model_dump(), status, headers)


def create_app(endpoint: Endpoint) -> FastAPI:
    """Returns the ASGI application around `endpoint`."""
    app = FastAPI(title="ORCA", description="OpenAI-compatible endpoint of an ORCA engine master")

    @app.exception_handler(RequestValidationError)
    async def _invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        # Where a field may have several types each is complained about; the deepest error is meant.
        first = max(error.errors(), key=lambda found: len(found["loc"]))
        path = [str(part) for part in first["loc"] if part != "body"]
        field = path[0] if path else None
        return error_response(400, f"{'.'.join(path) or 'body'}: {first['msg']}", field)

    @app.exception_handler(RequestError)
    async def _refused(_: Request, error: RequestError) -> JSONResponse:
        return error_response(400, str(error), error.field)

    @app.exception_handler(QueueFullError)
    async def _full(_: Request, error: QueueFullError) -> JSONResponse:
        return error_response(429, str(error), code="queue_full")

    @app.exception_handler(EngineUnavailableError)
    async def _unavailable(_: Request, error: EngineUnavailableError) -> JSONResponse:
        return error_response(503, str(error), code="engine_unavailable")

    @app.exception_handler(HTTPException)
    async def _http(_: Request, error: HTTPException) -> JSONResponse:
        return error_response(error.status_code, str(error.detail))

    @app.exception_handler(Exception)
    async def _unexpected(_: Request, error: Exception) -> JSONResponse:
        return error_response(500, f"internal error: {type(error).__name__}")

    @app.post("/v1/completions", response_model=Completion, response_model_exclude_none=False, responses=ERRORS)
    async def completions(body: CompletionRequest, request: Request) -> Response:
        """Generates text after a prompt."""
        _check_serving(endpoint)
        if body.model != endpoint.model_name:
            message = f"the model {body.model!r} does not exist, this server has {endpoint.model_name!r}"
            return error_response(404, message, "model", "model_not_found")
        submission = endpoint.submission(body)
        choices = endpoint.choices(submission, body)
        if body.stream:
            # The first piece is awaited here, so that a refusal still has its own status.
            first = await _unless_disconnected(request, anext(choices))
            if first is None:
                return Response(status_code=CLIENT_CLOSED_REQUEST)
            return StreamingResponse(
                _stream(endpoint, submission, body, first, choices), media_type="text/event-stream"
            )
        collected = await _unless_disconnected(request, _collect(choices))
        if collected is None:
            return Response(status_code=CLIENT_CLOSED_REQUEST)
        choice, generated = collected
        answer = endpoint.completion(submission, [choice], _usage(submission, generated))
        return JSONResponse(_dump(answer))

    @app.get("/v1/models", response_model=ModelList)
    async def models() -> ModelList:
        """Lists the one model that is served."""
        facts = endpoint.engine.engine.facts
        card = ModelCard(id=endpoint.model_name, created=endpoint.created, max_model_len=facts.max_model_len)
        return ModelList(data=[card])

    @app.get("/livez", response_class=PlainTextResponse)
    async def livez() -> str:
        """The process answers."""
        return "ok\n"

    @app.get("/readyz", response_class=PlainTextResponse, responses={503: {"description": "not serving, with why"}})
    async def readyz() -> Response:
        """At least one pipeline serves."""
        engine = endpoint.engine.engine
        if engine.state is EngineState.SERVING:
            return PlainTextResponse("ok\n")
        return PlainTextResponse(f"{engine.state.value}: {engine.failure or 'not yet'}\n", 503)

    @app.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> Response:
        """Prometheus metrics."""
        return Response(endpoint.metrics.render(), media_type="text/plain; version=0.0.4; charset=utf-8")

    return app


def _check_serving(endpoint: Endpoint) -> None:
    engine = endpoint.engine.engine
    if engine.state is not EngineState.SERVING:
        raise EngineUnavailableError(engine.failure or "the model is still loading")


def _dump(completion: Completion) -> dict[str, Any]:
    """The wire form: extensions that were not asked for are left out, OpenAI's nulls stay."""
    data = completion.model_dump()
    if completion.usage is None:
        del data["usage"]
    for choice in data["choices"]:
        for name in ("token_ids", "prompt_token_ids"):
            if choice[name] is None:
                del choice[name]
    return data


async def _collect(choices: AsyncIterator[CompletionChoice]) -> tuple[CompletionChoice, int]:
    """Joins the pieces of one choice; returns it with the number of generated tokens."""
    pieces = [piece async for piece in choices]
    first, last = pieces[0], pieces[-1]
    token_ids = None if first.token_ids is None else [token for piece in pieces for token in piece.token_ids or ()]
    joined = last.model_copy(
        update={
            "text": "".join(piece.text for piece in pieces),
            "token_ids": token_ids,
            "prompt_token_ids": first.prompt_token_ids,
        }
    )
    return joined, len(pieces)


async def _stream(
    endpoint: Endpoint,
    submission: Submission,
    body: CompletionRequest,
    first: CompletionChoice,
    rest: AsyncIterator[CompletionChoice],
) -> AsyncIterator[str]:
    """Yields server-sent events; an error under way becomes a last event before the end."""
    generated = 1
    try:
        yield _event(endpoint.completion(submission, [first], None))
        async for choice in rest:
            generated += 1
            yield _event(endpoint.completion(submission, [choice], None))
        if body.stream_options is not None and body.stream_options.include_usage:
            yield _event(endpoint.completion(submission, [], _usage(submission, generated)))
        yield "data: [DONE]\n\n"
    except EngineUnavailableError as error:
        detail = ErrorDetail(message=str(error), type="server_error", code="engine_unavailable")
        yield f"data: {ErrorBody(error=detail).model_dump_json()}\n\n"
    finally:
        with contextlib.suppress(RuntimeError):
            await rest.aclose()  # type: ignore[attr-defined]


def _event(completion: Completion) -> str:
    return f"data: {json.dumps(_dump(completion), ensure_ascii=False, separators=(',', ':'))}\n\n"


async def _unless_disconnected(request: Request, work: Any) -> Any:
    """Awaits `work`, or cancels it and returns None once the client has gone."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        for pending in (task, gone):
            pending.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
