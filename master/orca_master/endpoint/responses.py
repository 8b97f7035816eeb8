"""POST /v1/responses and /v1/responses/input_tokens: the Responses API over the generation of chat completions.

response_prompt.py converts a request to a chat request, response_answer.py the pieces of the answer to a response and
to the events of its stream.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

from fastapi import FastAPI, Request, Response

from orca_master.bodies.openai_requests import ChatCompletionRequest
from orca_master.bodies.response_items import InputItem
from orca_master.bodies.response_requests import ResponseRequest
from orca_master.endpoint.background import BackgroundRun
from orca_master.endpoint.background_stream import stored_stream
from orca_master.endpoint.chat import chat_generation, chat_prompt, token_logprob
from orca_master.endpoint.choice_run import Piece
from orca_master.endpoint.delivery import CLIENT_CLOSED_REQUEST, deliver_body, deliver_stream, groups_of, unless_gone
from orca_master.endpoint.endpoint import Endpoint
from orca_master.endpoint.generation import Generation
from orca_master.endpoint.middleware import owner_of
from orca_master.endpoint.openai_answers import ChatTokenLogprob
from orca_master.endpoint.prompt_logprobs import TokenTexts
from orca_master.endpoint.recorded_body import CHAT
from orca_master.endpoint.recorder import Recorder
from orca_master.endpoint.response_answer import FAILURES, ResponseAnswer, fault_of
from orca_master.endpoint.response_objects import (
    ResponseInputTokens,
    ResponseObject,
    begun_response,
    wire_event,
    wire_json,
)
from orca_master.endpoint.response_output import ResponseOutput
from orca_master.endpoint.response_prompt import chat_request, response_fields
from orca_master.endpoint.response_record import conversation_of, record
from orca_master.endpoint.response_store import RESPONSE_ID, StoredResponse
from orca_master.errors import EngineUnavailableError, RequestError

Keep = Callable[[ResponseObject], Awaitable[None]]
"""Stores a response that has ended, or notes in it that it is not stored."""


def add_responses(app: FastAPI, endpoint: Endpoint) -> None:
    """Add the routes."""

    @app.post("/v1/responses/input_tokens", response_model=ResponseInputTokens)
    async def input_tokens(body: ResponseRequest, request: Request) -> ResponseInputTokens:
        """Return the number of tokens of the prompt that a response's body makes."""
        owner = owner_of(request)
        chat = chat_request(body, await _earlier_items(endpoint, body, owner), endpoint.lengths)
        with response_fields():
            count = len(await chat_prompt(endpoint, chat, owner))
        return ResponseInputTokens(object="response.input_tokens", input_tokens=count)

    @app.post("/v1/responses", response_model=ResponseObject)
    async def responses(body: ResponseRequest, request: Request) -> Response:
        """Generate the next items of a conversation."""
        owner = owner_of(request)
        earlier = await _earlier_items(endpoint, body, owner)
        chat = endpoint.with_defaults(chat_request(body, earlier, endpoint.lengths))
        with response_fields():
            generation = await chat_generation(endpoint, chat, request, "resp_")
            answer = _answer(endpoint, body, chat, generation)
            recorder = endpoint.recorder(CHAT, chat, generation, request)
            if body.background:
                return await _background(endpoint, body, request, generation, answer, recorder)
            pieces = endpoint.generator.pieces(generation, recorder)

            async def keep(response: ResponseObject) -> None:
                if response["store"]:
                    data = record(response, body.items)
                    previous = body.previous_response_id or ""
                    stored = StoredResponse(response["id"], owner, previous, data)
                    try:
                        response["store"] = await endpoint.responses.put(stored)
                    except EngineUnavailableError:  # the master has ended after the last token
                        response["store"] = False

            if not body.stream:
                return await deliver_body(request, _whole(answer, pieces, keep))
            return await deliver_stream(request, pieces, lambda first: _events(answer, pieces, first, keep))


async def _background(
    endpoint: Endpoint,
    body: ResponseRequest,
    request: Request,
    generation: Generation,
    answer: ResponseAnswer,
    recorder: Recorder | None,
) -> Response:
    """Begin a response that runs without its client; return the queued response, or the stream of its events."""
    owner = owner_of(request)
    run = BackgroundRun(
        endpoint.responses,
        owner,
        body.previous_response_id or "",
        answer,
        lambda response: record(response, body.items),
        body.stream,
    )
    accepted = asyncio.Event()
    pieces = endpoint.generator.pieces(generation, recorder, accepted=accepted)
    queued = await unless_gone(request, endpoint.background.start(run, pieces, accepted))
    if queued is None:
        return Response(status_code=CLIENT_CLOSED_REQUEST)
    if body.stream:
        return stored_stream(endpoint.responses, endpoint.background, owner, queued["id"], -1)
    return Response(wire_json(queued), media_type="application/json")


async def _earlier_items(endpoint: Endpoint, body: ResponseRequest, owner: str) -> Sequence[InputItem]:
    """Return the items of the conversation that the request continues; raise RequestError if they are not stored."""
    wanted = "background" if body.background else "store" if body.store and "store" in body.model_fields_set else ""
    if wanted and not endpoint.config.stored_responses.count:
        raise RequestError(f"{wanted}: this server stores no responses (--max-stored-responses 0)", wanted)
    previous = body.previous_response_id
    if previous is None:
        return ()
    records = await endpoint.responses.conversation(owner, previous) if RESPONSE_ID.fullmatch(previous) else []
    if not records:
        raise RequestError(
            f"previous_response_id: the response {previous[:80]!a} or one before it is not stored, or another API key "
            "made it: send all items in input",
            "previous_response_id",
            "previous_response_not_found",
        )
    return conversation_of(records)


def _answer(
    endpoint: Endpoint, body: ResponseRequest, chat: ChatCompletionRequest, generation: Generation
) -> ResponseAnswer:
    response_id = generation.request_id
    store = body.store and endpoint.config.stored_responses.count > 0

    def call_id(index: int) -> str:
        return endpoint.answers.call_id(response_id, 0, index)

    texts = TokenTexts(endpoint.codec)

    def logprobs(piece: Piece) -> list[ChatTokenLogprob]:
        if piece.logprobs is None or not body.wants_logprobs:
            return []
        return [token_logprob(texts, piece)]

    parser = endpoint.answers.parser(chat, generation.prompts[0])
    return ResponseAnswer(
        begun_response(body, response_id, generation.created, endpoint.name_of(body.model), store),
        generation.prompt_tokens,
        parser,
        ResponseOutput(response_id, call_id, parser.is_plain),
        logprobs,
        time.time,
    )


async def _whole(answer: ResponseAnswer, pieces: AsyncIterator[list[Piece]], keep: Keep) -> bytes:
    """Return the response as JSON after the last piece."""
    async for together in pieces:
        for piece in together:
            answer.feed(piece)
    answer.end()
    await keep(answer.response)
    return wire_json(answer.response).encode()


async def _events(
    answer: ResponseAnswer, pieces: AsyncIterator[list[Piece]], first: asyncio.Task[list[Piece]], keep: Keep
) -> AsyncIterator[list[str]]:
    """Yield server-sent events, those of pieces that come together in one list; an error becomes the last event."""
    numbers = itertools.count()
    ready = [wire_event(event, next(numbers)) for event in answer.begin()]
    try:
        async with groups_of(first, pieces) as groups:
            if not first.done():
                yield ready
                ready = []
            async for together in groups:
                ready += [wire_event(event, next(numbers)) for piece in together for event in answer.feed(piece)]
                yield ready
                ready = []
        ending = answer.end()
        await keep(answer.response)
        yield [wire_event(event, next(numbers)) for event in ending]
    except FAILURES as error:
        ending = answer.fail(*fault_of(error))
        await keep(answer.response)
        yield [*ready, *(wire_event(event, next(numbers)) for event in ending)]
