"""The ASGI application: middleware, errors in OpenAI's shape, and the routes without generation.

/v1/completions is in completions.py, /v1/chat/completions in chat.py, /v1/embeddings in embeddings.py, /v1/score and
/v1/rerank in scores.py, /v1/messages in messages.py, /v1/responses in responses.py, /v1/files and /v1/batches in
file_routes.py and batch_routes.py, the loading of adapters in adapter_routes.py. Order of middleware, outermost first:
request id, access log and count → errors of messages → internal errors → Host → CORS → API key → body limits → early
refusal.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.middleware.cors import CORSMiddleware
from fastapi.openapi.utils import get_openapi
from fastapi.responses import JSONResponse, PlainTextResponse
from orca_contract import routes
from starlette.exceptions import HTTPException

from orca_master.bodies.body import nullable
from orca_master.bodies.tokenize_requests import DetokenizeRequest, TokenizeChatRequest, TokenizeRequest
from orca_master.bodies.validation import described
from orca_master.endpoint.adapter_routes import add_adapters
from orca_master.endpoint.allowed_hosts import AllowedHosts
from orca_master.endpoint.api_keys import KeyRing
from orca_master.endpoint.batch_routes import add_batches
from orca_master.endpoint.body_limits import BodyLimits
from orca_master.endpoint.chat import add_chat, rendered
from orca_master.endpoint.checked_route import checked_route
from orca_master.endpoint.completions import add_completions
from orca_master.endpoint.early_refusal import EarlyRefusal
from orca_master.endpoint.embeddings import add_embeddings
from orca_master.endpoint.endpoint import Endpoint
from orca_master.endpoint.error_schemas import error_responses, error_schemas
from orca_master.endpoint.file_routes import add_files
from orca_master.endpoint.internal_errors import InternalErrors
from orca_master.endpoint.messages import add_messages
from orca_master.endpoint.messages_answers import MessagesErrorBody
from orca_master.endpoint.messages_errors import MessagesErrors
from orca_master.endpoint.middleware import REQUEST_ID, ApiKeys, RequestIds, owner_of
from orca_master.endpoint.openai_answers import Detokenized, ErrorBody, ModelCard, ModelList, Tokenized
from orca_master.endpoint.requests_route import add_requests
from orca_master.endpoint.responding import error_response, queue_full_response
from orca_master.endpoint.responses import add_responses
from orca_master.endpoint.scores import add_scores
from orca_master.endpoint.stored_responses import add_stored_responses
from orca_master.endpoint.token_choice import check_token_ids
from orca_master.engine.progress import progress_report
from orca_master.errors import (
    EngineError,
    EngineUnavailableError,
    ModelNotFoundError,
    QueueFullError,
    RequestError,
    RequestTimeoutError,
)


def create_app(endpoint: Endpoint) -> FastAPI:
    """Return the application that serves `endpoint`."""
    app = FastAPI(
        title="ORCA",
        version=version("orca-serving"),
        description="OpenAI-compatible endpoint of an ORCA engine master",
        redoc_url=None,
        swagger_ui_oauth2_redirect_url=None,
        redirect_slashes=False,  # a redirect would lack what a proxy has removed: https, and a path above the root path
        responses=error_responses(ErrorBody),
    )
    app.root_path = endpoint.config.root_path  # FastAPI warns about the parameter
    _add_errors(app, endpoint)
    app.router.route_class = checked_route(endpoint)
    add_completions(app, endpoint)
    add_chat(app, endpoint)
    add_embeddings(app, endpoint)
    add_scores(app, endpoint)
    add_messages(app, endpoint)
    add_responses(app, endpoint)
    add_stored_responses(app, endpoint)
    add_files(app, endpoint)
    add_batches(app, endpoint)
    add_adapters(app, endpoint)
    if endpoint.resumable is not None:
        add_requests(app, endpoint, endpoint.resumable)
    _add_models_and_text(app, endpoint)
    _add_probes(app, endpoint)
    app.add_middleware(EarlyRefusal, endpoint=endpoint)
    config = endpoint.config
    max_file_bytes = None if config.batches is None else config.batches.max_file_bytes
    app.add_middleware(BodyLimits, limits=config.http, max_file_bytes=max_file_bytes)
    if config.api_keys or config.api_key_file:
        app.add_middleware(ApiKeys, keys=KeyRing(config.api_keys, config.api_key_file))
    if endpoint.config.allowed_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(endpoint.config.allowed_origins),
            allow_methods=["*"],
            allow_headers=["*"],
            expose_headers=[REQUEST_ID, "Retry-After", "X-Should-Retry"],
        )
    if endpoint.config.allowed_hosts:
        app.add_middleware(AllowedHosts, hosts=endpoint.config.allowed_hosts)
    app.add_middleware(InternalErrors)
    app.add_middleware(MessagesErrors)
    app.add_middleware(RequestIds, log_requests=endpoint.config.log_requests, note=endpoint.engine.note_response)
    # Cached, because /openapi.json needs no key, and creating the schema takes 0.1 s.
    names = () if config.runtime_adapters else tuple(endpoint.models.numbers(None))
    schema = functools.lru_cache(maxsize=1)(functools.partial(_openapi, app, names))
    app.openapi = lambda: schema(  # type: ignore[method-assign]
        endpoint.engine.status.vocabulary_size, endpoint.engine.status.longest
    )
    return app


def create_generating_app(endpoint: Endpoint) -> FastAPI:
    """Return an application for calls within this process: the routes of batches, without middleware."""
    app = FastAPI(openapi_url=None)
    _add_errors(app, endpoint)
    app.router.route_class = checked_route(endpoint)
    add_completions(app, endpoint)
    add_chat(app, endpoint)
    add_embeddings(app, endpoint)
    add_responses(app, endpoint)
    return app


def _add_errors(app: FastAPI, endpoint: Endpoint) -> None:
    @app.exception_handler(RequestValidationError)
    async def _invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        # Without the place of a parameter, such as "query".
        request_error = described([{**entry, "loc": entry["loc"][1:]} for entry in error.errors()])
        return error_response(400, str(request_error), request_error.field)

    @app.exception_handler(RequestError)
    async def _refused(_: Request, error: RequestError) -> JSONResponse:
        return error_response(400, str(error), error.field, error.code)

    @app.exception_handler(ModelNotFoundError)
    async def _not_found(_: Request, error: ModelNotFoundError) -> JSONResponse:
        return error_response(404, str(error), "model", "model_not_found")

    @app.exception_handler(RequestTimeoutError)
    async def _timeout(_: Request, error: RequestTimeoutError) -> JSONResponse:
        return _without_retry(error_response(408, str(error), code="request_timeout"))

    @app.exception_handler(QueueFullError)
    async def _full(_: Request, error: QueueFullError) -> JSONResponse:
        return queue_full_response(str(error), endpoint.engine.status)

    @app.exception_handler(EngineUnavailableError)
    async def _unavailable(_: Request, error: EngineUnavailableError) -> JSONResponse:
        seconds = endpoint.engine.status.retry_after
        return error_response(503, str(error), code="engine_unavailable", retry_after=seconds)

    @app.exception_handler(EngineError)
    async def _failed(_: Request, error: EngineError) -> JSONResponse:
        return _without_retry(error_response(500, str(error), code="engine_error"))

    @app.exception_handler(HTTPException)
    async def _http(_: Request, error: HTTPException) -> JSONResponse:
        response = error_response(error.status_code, str(error.detail))
        response.headers.update(error.headers or {})
        return response

    @app.exception_handler(Exception)
    async def _unexpected(_: Request, error: Exception) -> JSONResponse:
        return error_response(500, f"internal error: {type(error).__name__}")


def _without_retry(response: JSONResponse) -> JSONResponse:
    """Return the response with the header that keeps official clients from repeating the request after 408 or 5xx."""
    response.headers["X-Should-Retry"] = "false"
    return response


def _add_models_and_text(app: FastAPI, endpoint: Endpoint) -> None:
    @app.get("/v1/models", response_model=ModelList)
    async def models(request: Request) -> ModelList:
        """List all names of the served model, and its adapters."""
        return ModelList(data=endpoint.cards(owner_of(request)))

    @app.get("/v1/models/{model:path}", response_model=ModelCard)
    async def model(model: str, request: Request) -> ModelCard:
        """Return one model."""
        endpoint.check(model, owner_of(request))
        return endpoint.card(model)

    @app.post("/tokenize", response_model=Tokenized)
    async def tokenize(body: TokenizeRequest, request: Request) -> Tokenized:
        """Convert text or messages to token ids."""
        owner = owner_of(request)
        endpoint.check(body.model, owner)
        if isinstance(body, TokenizeChatRequest):
            text, field = await rendered(endpoint, body, body.chat_template_kwargs, body.tools, owner), "messages"
        else:
            text, field = body.prompt, "prompt"
        tokens = await endpoint.encode(text, field, owner, body.add_special_tokens)
        return Tokenized(
            tokens=tokens,
            count=len(tokens),
            max_model_len=endpoint.engine.status.max_model_len,
            token_strs=endpoint.codec.names(tokens) if body.return_token_strs else None,
        )

    @app.post("/detokenize", response_model=Detokenized)
    async def detokenize(body: DetokenizeRequest, request: Request) -> Detokenized:
        """Convert token ids to text."""
        endpoint.check(body.model, owner_of(request))
        check_token_ids("tokens", body.tokens, endpoint.engine.status.vocabulary_size)
        return Detokenized(prompt=endpoint.codec.decode(list(body.tokens)))


def _add_probes(app: FastAPI, endpoint: Endpoint) -> None:
    @app.get(routes.LIVE, response_class=PlainTextResponse)
    async def livez() -> str:
        """Answer 200 while the process runs."""
        return "ok\n"

    @app.get("/health", response_class=PlainTextResponse)
    @app.get("/ping", response_class=PlainTextResponse)
    @app.post("/ping", response_class=PlainTextResponse)
    @app.get(routes.READY, response_class=PlainTextResponse)
    async def readyz() -> Response:
        """Answer 200 if clients should be sent here, else 503 with the reason."""
        reason = endpoint.engine.status.not_ready
        return PlainTextResponse(f"{reason}\n", 503) if reason else PlainTextResponse("ok\n")

    @app.get(routes.PROGRESS)
    async def progressz() -> dict[str, Any]:
        """Return whether the engine is stalled, with its progress counters."""
        status = endpoint.engine.status
        return progress_report(status.state, status.serves, status.progress).wire()

    @app.get("/load")
    async def load() -> dict[str, int]:
        """Return the number of unfinished requests of the engine."""
        return {"server_load": endpoint.engine.status.progress.num_unfinished}

    @app.get("/version")
    async def server_version() -> dict[str, str]:
        """Return the version of orca-serving."""
        return {"version": version("orca-serving")}

    @app.get(routes.METRICS, response_class=PlainTextResponse)
    async def metrics() -> Response:
        """Return Prometheus metrics."""
        return Response(await endpoint.engine.metrics(), media_type="text/plain; version=0.0.4; charset=utf-8")


def _openapi(app: FastAPI, model_names: Sequence[str], vocabulary_size: int, longest: int) -> dict[str, Any]:
    """Return the OpenAPI schema with the model's names (none: they change) and limits (0: they are not known yet)."""
    schema = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
    parts = schema["components"]["schemas"]
    parts |= error_schemas(ErrorBody, MessagesErrorBody)
    for name in (
        "CompletionRequest",
        "ChatCompletionRequest",
        "EmbeddingRequest",
        *(f"Score{kind}Request" for kind in ("Texts", "Documents", "Items")),
        "RerankRequest",
        "MessagesRequest",
        "CountTokensRequest",
        "ResponseRequest",
        "TokenizeTextRequest",
        "TokenizeChatRequest",
        "DetokenizeRequest",
    ):
        model = {"type": "string"} | ({"enum": list(model_names)} if model_names else {})
        parts[name]["properties"]["model"] = model if "model" in parts[name]["required"] else nullable(model)
    if vocabulary_size:
        _limit(parts, "maximum", 2**31 - 1, vocabulary_size - 1)
    for name in ("CompletionRequest", "ChatCompletionRequest", "MessagesRequest", "ResponseRequest"):
        for field in ("max_tokens", "max_completion_tokens", "max_output_tokens"):
            if field in parts[name]["properties"]:
                schema_of_field = parts[name]["properties"][field]
                schema_of_field["description"] = f"at most {longest} tokens together with the prompt"
    for operations in schema["paths"].values():
        for operation in operations.values():
            operation["responses"].pop("422", None)  # answered with 400
    return schema


def _limit(node: Any, key: str, old: int, new: int) -> None:
    """Replace the bound `old` by `new` in all properties: token ids are below the vocabulary size."""
    for child in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        _limit(child, key, old, new)
    if isinstance(node, dict) and node.get(key) == old:
        node[key] = new
