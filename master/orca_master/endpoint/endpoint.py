"""`Endpoint`: the shared state of all routes, and the checks of every request before the engine."""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import InitVar, dataclass, field
from typing import TypeVar

from fastapi import Request

from orca_master.batches.service import Batches
from orca_master.bodies.body import Body
from orca_master.bodies.body_checker import BodyChecker
from orca_master.bodies.bounded_turns import MIN_WAITING, Caller
from orca_master.bodies.lengths import Lengths
from orca_master.bodies.openai_requests import GenerationRequest
from orca_master.endpoint.answer_parts import AnswerFormat
from orca_master.endpoint.background import BackgroundRuns
from orca_master.endpoint.config import EndpointConfig
from orca_master.endpoint.generation import Generation, Generator
from orca_master.endpoint.memory_store import MemoryStore
from orca_master.endpoint.middleware import owner_of
from orca_master.endpoint.openai_answers import ModelCard
from orca_master.endpoint.request_deadline import TimeLimit, time_limit
from orca_master.endpoint.response_store import ResponseStore
from orca_master.endpoint.resumable import ResumableRequests
from orca_master.endpoint.resumable_request import ResumableRequest
from orca_master.endpoint.served_models import ServedModels
from orca_master.engine.adapter_calls import AdapterLoader
from orca_master.engine.engine_client import EngineClient
from orca_master.engine.request_limits import check_wait
from orca_master.errors import EngineUnavailableError
from orca_master.text.chat_template import ChatTemplate
from orca_master.text.encoder import Encoder
from orca_master.text.tokenizer import TextCodec

AnyBody = TypeVar("AnyBody", bound=Body)


@dataclass(slots=True)
class Endpoint:
    """Engine, tokenizer, chat template and generator of the routes."""

    config: EndpointConfig
    engine: EngineClient
    codec: TextCodec
    template: ChatTemplate
    models: ServedModels = field(init=False)
    generator: Generator = field(init=False)
    answers: AnswerFormat = field(init=False)
    _encoder: Encoder = field(init=False)
    bodies: BodyChecker = field(default_factory=BodyChecker)
    resumable: ResumableRequests | None = None
    """The requests in the journal, None without a journal."""
    store: InitVar[ResponseStore | None] = None
    """Of `responses`; None: in the memory of this process."""
    responses: ResponseStore = field(init=False)
    """Stored responses of /v1/responses."""
    batches: Batches | None = None
    """The files and batches, None without --batch-directory."""
    adapter_loader: AdapterLoader | None = None
    """None without --enable-runtime-adapters."""
    background: BackgroundRuns = field(default_factory=BackgroundRuns)
    created: int = field(default_factory=lambda: int(time.time()))

    def __post_init__(self, store: ResponseStore | None) -> None:
        self.responses = MemoryStore(self.config.stored_responses) if store is None else store
        self._encoder = Encoder(self.codec)
        config, template = self.config, self.template.source_with_tools
        self.answers = AnswerFormat.of(config.tool_call_parser, config.reasoning_parser, template, self.codec)
        self.models = ServedModels(self.config.model_names, self.config.adapters, self.engine)
        self.generator = Generator(
            self.engine,
            self.codec,
            self.models,
            self.config.http.max_unread_bytes,
            self.answers,
        )

    @property
    def model_name(self) -> str:
        """The model's name."""
        return self.config.model_names[0]

    def name_of(self, model: str | None) -> str:
        """Return the name in responses to a request for `model`: that of the model, or of an adapter."""
        return self.models.name_of(model)

    def check(self, model: str | None, owner: str | None) -> None:
        """Raise EngineUnavailableError while the engine is unavailable, ModelNotFoundError for another model.

        `owner`: digest of the client's key; None: as a client who has loaded no adapter.
        """
        if reason := self.engine.status.unavailable:
            raise EngineUnavailableError(reason)
        self.models.number_of(model, owner)

    def with_defaults(self, body: AnyBody) -> AnyBody:
        """Return `body` with the model's sampling parameters in place of those that the client has not set."""
        fields = type(body).model_fields.keys() - body.model_fields_set
        values = {name: value for name, value in self.codec.sampling_defaults.items() if name in fields}
        return body.model_copy(update=values) if values else body

    def time_limit(self, request: Request) -> TimeLimit:
        """Return until when a request must have ended; raise RequestError."""
        return time_limit(request, self.config.request_timeout)

    def check_wait(self) -> None:
        """Raise QueueFullError if the engine would refuse any new request because of its expected wait."""
        status = self.engine.status
        if not status.unavailable:  # `check` has the reason
            check_wait(status.expected_wait, status.max_expected_wait)

    def recorder(
        self, route: str, body: GenerationRequest, generation: Generation, request: Request
    ) -> ResumableRequest | None:
        """Return the recorder of a new request, None without a journal."""
        if self.resumable is None:
            return None
        return self.resumable.accept(route, body, generation, owner_of(request))

    def cards(self, owner: str) -> list[ModelCard]:
        """Return a model card for each name of the model, and for each adapter that requests of `owner` may use."""
        return [self.card(name) for name in self.models.numbers(owner)]

    def card(self, name: str) -> ModelCard:
        """Return the model card of a served name."""
        parent = None if name in self.config.model_names else self.model_name
        return ModelCard(id=name, created=self.created, max_model_len=self.engine.status.max_model_len, parent=parent)

    @property
    def lengths(self) -> Lengths:
        """Length limits of a request's fields; those of the model apply once the model is loaded."""
        return Lengths(self.engine.status.max_model_len or None)

    def caller(self, owner: str) -> Caller:
        """Return the client with the API key `owner`, whose requests wait for turns before the engine's queue."""
        return Caller(owner, max(MIN_WAITING, self.engine.status.max_queued_requests))

    async def encode(self, text: str, name: str, owner: str, add_special_tokens: bool = True) -> list[int]:
        """Tokenize a text, the field `name` of a request; raise RequestError or QueueFullError."""
        return await self._encoder.encode(text, name, add_special_tokens, self.lengths, self.caller(owner))

    def interrupt(self) -> None:
        """End the streams that wait for requests of an earlier master."""
        if self.resumable is not None:
            self.resumable.interrupt()

    async def abandon_batches(self) -> None:
        """Stop the lines of batches; the next master sends them again."""
        if self.batches is not None:
            await self.batches.close()

    async def drain(self, more: float = 0.0) -> None:
        """Wait for all running generations, at most the engine's drain timeout and `more` seconds.

        Background responses of other processes that are read here are waited for, too.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.engine.status.drain_timeout + more):
                await self.generator.activity.idle.wait()
                await self.background.activity.idle.wait()
