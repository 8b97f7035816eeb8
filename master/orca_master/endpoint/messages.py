"""POST /v1/messages and /v1/messages/count_tokens: Anthropic's API over the pipeline of chat completions."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from functools import partial

from fastapi import FastAPI, Request, Response

from orca_master.bodies.messages_requests import CountTokensRequest, MessagesRequest
from orca_master.bodies.messages_translation import chat_request
from orca_master.bodies.openai_requests import ChatCompletionRequest
from orca_master.endpoint.answer_parts import BUDGET
from orca_master.endpoint.chat import chat_prompt, room_after
from orca_master.endpoint.choice_run import Piece
from orca_master.endpoint.delivery import deliver_body, deliver_stream, groups_of
from orca_master.endpoint.endpoint import Endpoint
from orca_master.endpoint.error_schemas import error_responses
from orca_master.endpoint.generation import Generation
from orca_master.endpoint.messages_answers import InputTokens, Message, MessagesErrorBody
from orca_master.endpoint.messages_errors import error_body
from orca_master.endpoint.messages_events import Event, MessageEvents, message_of
from orca_master.endpoint.middleware import MESSAGES, owner_of
from orca_master.endpoint.recorded_body import CHAT
from orca_master.endpoint.responding import STATUSES, status_and_code
from orca_master.endpoint.trace_parent import parent_of
from orca_master.errors import RequestError

PING = b'event: ping\ndata: {"type": "ping"}\n\n'


def add_messages(app: FastAPI, endpoint: Endpoint) -> None:
    """Add the routes."""
    errors = error_responses(MessagesErrorBody)

    @app.post(MESSAGES, response_model=Message, responses=errors)
    async def messages(body: MessagesRequest, request: Request) -> Response:
        """Generate the assistant's next message."""
        _check_thinking(endpoint, body)
        chat = endpoint.with_defaults(chat_request(body))
        owner, limit = owner_of(request), endpoint.time_limit(request)
        async with limit.applied():
            prompt = await chat_prompt(endpoint, chat, owner)
        # As Anthropic's models do, an answer ends where the context does; clients always send max_tokens.
        max_tokens = min(body.max_tokens, room_after(endpoint, prompt))
        try:
            parent = parent_of(request)
            generation = endpoint.generator.prepare("msg_", chat, [prompt], max_tokens, None, limit, owner, parent)
            pieces = endpoint.generator.pieces(generation, endpoint.recorder(CHAT, chat, generation, request))
            events = _events_of(endpoint, body, chat, generation, fills_context=max_tokens < body.max_tokens)
            if body.stream:
                return await deliver_stream(request, pieces, partial(_stream, events, pieces), PING)
            return await deliver_body(request, _whole(events, pieces))
        except RequestError as error:
            raise _in_message_fields(error) from error

    @app.post(f"{MESSAGES}/count_tokens", response_model=InputTokens, responses=errors)
    async def count_tokens(body: CountTokensRequest, request: Request) -> InputTokens:
        """Return the number of tokens of the prompt that a message's body makes."""
        _check_thinking(endpoint, body)
        return InputTokens(input_tokens=len(await chat_prompt(endpoint, chat_request(body), owner_of(request))))


def _in_message_fields(error: RequestError) -> RequestError:
    """Return an error about the budget of a chat with the field of this API; others are returned unchanged."""
    if error.field != BUDGET:
        return error
    return RequestError(str(error).replace(BUDGET, "thinking.budget_tokens"), "thinking", error.code)


def _check_thinking(endpoint: Endpoint, body: CountTokensRequest) -> None:
    if body.thinking is not None and body.thinking.type == "enabled" and endpoint.answers.reasoning is None:
        raise RequestError(
            'thinking: this server does not separate reasoning: send {"type": "disabled"}, or start the server with '
            "--reasoning-parser",
            "thinking",
        )


def _events_of(
    endpoint: Endpoint, body: MessagesRequest, chat: ChatCompletionRequest, generation: Generation, fills_context: bool
) -> MessageEvents:
    def call_id(number: int) -> str:
        return endpoint.answers.call_id(generation.request_id, 0, number)

    thinking = body.thinking
    return MessageEvents(
        generation.request_id,
        endpoint.name_of(body.model),
        generation.prompt_tokens,
        endpoint.answers.parser(chat, generation.prompts[0]),
        call_id,
        thinking is not None and thinking.type != "disabled" and thinking.display == "summarized",
        fills_context,
    )


async def _whole(events: MessageEvents, pieces: AsyncIterator[list[Piece]]) -> bytes:
    """Return the message as JSON."""
    all_events: list[Event] = []
    async for together in pieces:
        if not all_events:
            all_events.append(events.start(together))
        for piece in together:
            all_events += events.of(piece)
    return json.dumps(message_of(all_events)).encode()


async def _stream(
    events: MessageEvents, pieces: AsyncIterator[list[Piece]], first: asyncio.Task[list[Piece]]
) -> AsyncIterator[list[str]]:
    """Yield server-sent events, those of pieces that come together in one list; an error becomes the last event."""
    ready: list[str] = []
    """Events that have not been yielded."""
    has_begun = False
    try:
        async with groups_of(first, pieces) as groups:
            async for together in groups:
                if not has_begun:
                    ready.append(_as_text(events.start(together)))
                    has_begun = True
                ready.extend(_as_text(event) for piece in together for event in events.of(piece))
                if ready:  # while a tool call is generated there is none, and pings are due
                    yield ready
                ready = []
    except tuple(STATUSES) as error:
        status, _ = status_and_code(error)
        named = _in_message_fields(error) if isinstance(error, RequestError) else error
        yield [*ready, f"event: error\ndata: {error_body(status, str(named)).decode()}\n\n"]


def _as_text(event: Event) -> str:
    return f"event: {event['type']}\ndata: {json.dumps(event, ensure_ascii=False, separators=(',', ':'))}\n\n"
