"""POST /v1/chat/completions: completions of messages, rendered by the model's chat template."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any, Literal

from fastapi import FastAPI, Request, Response
from orca_protos import engine_pb2 as pb

from orca_master.bodies.openai_requests import ChatCompletionRequest
from orca_master.bodies.tokenize_requests import TokenizeChatRequest
from orca_master.bodies.tools import Tool
from orca_master.bodies.truncation import truncation_of
from orca_master.endpoint.answer_parts import AnswerFormat, AnswerParser
from orca_master.endpoint.choice_run import Piece
from orca_master.endpoint.endpoint import Endpoint
from orca_master.endpoint.generation import Generation
from orca_master.endpoint.middleware import owner_of
from orca_master.endpoint.openai_answers import (
    AssistantMessage,
    ChatChoice,
    ChatCompletion,
    ChatLogprobs,
    ChatTokenLogprob,
    ChatUsage,
    CompletionTokensDetails,
    FunctionCall,
    TokenLogprob,
    ToolCall,
    Usage,
)
from orca_master.endpoint.prompt_logprobs import SLICE_NUMBERS, PromptNumbers, TokenTexts, entries_json, texts_for
from orca_master.endpoint.recorded_body import CHAT
from orca_master.endpoint.responding import respond
from orca_master.endpoint.token_choice import check_min_tokens
from orca_master.endpoint.trace_parent import parent_of
from orca_master.engine.request_limits import check_generates, check_length
from orca_master.errors import CONTEXT_EXCEEDED, RequestError
from orca_master.text.tokenizer import TextCodec

ROOM = "the room that the prompt leaves in the context"
"""Origin of the length of an answer without a maximum."""
COUNTED_AT_ONCE = 1000
"""Tokens of a reasoning that are counted before others are served; one takes 3 microseconds."""


class ChatFormat:
    """`Format` of chat completions."""

    def __init__(self, body: ChatCompletionRequest, model_name: str, codec: TextCodec, answers: AnswerFormat) -> None:
        self._body = body
        self._model_name = model_name
        self._texts = texts_for(body, codec)
        self._answers = answers
        self._shows_reasoning = body.include_reasoning or answers.reasoning is None
        # Tokens would show the reasoning that is to be left out; vLLM, too, leaves them out.
        self._shows_ids = body.return_token_ids and self._shows_reasoning
        self._shows_logprobs = body.logprobs and self._shows_reasoning
        self._parsers: dict[int, AnswerParser] = {}
        """By choice: those of a stream; without a stream they have counted the tokens of the reasoning."""

    def opening(self, generation: Generation) -> Iterator[ChatCompletion]:
        """Yield the role, once for each choice."""
        role = AssistantMessage(role="assistant", content="")
        wants_ids = self._body.return_token_ids
        for choice in generation.choices:
            prompt = list(generation.prompt_of(choice.index)) if wants_ids else None
            opening = ChatChoice(index=choice.index, delta=role, finish_reason=None, prompt_token_ids=prompt)
            yield self._chunk(generation, opening)

    @property
    def only_text_varies(self) -> bool:
        """See Format."""
        is_plain = self._answers.parser(self._body, ()).is_plain
        return is_plain and not self._body.logprobs and not self._body.return_token_ids

    def prompt_chunks(self, generation: Generation, piece: Piece) -> Iterator[ChatCompletion]:
        """See Format."""
        yield from ()

    def chunk(self, generation: Generation, piece: Piece) -> ChatCompletion:
        """See Format."""
        if (parser := self._parsers.get(piece.index)) is None:
            parser = self._parsers[piece.index] = self._answers.parser(self._body, generation.prompts[0])
        parts = parser.feed(piece.text, last=piece.finish_reason is not None)
        reasoning = parts.reasoning if self._shows_reasoning else ""
        calls = [
            ToolCall(
                index=delta.index,
                id=self._call_id(generation, piece.index, delta.index) if delta.name is not None else None,
                type="function" if delta.name is not None else None,
                function=FunctionCall(name=delta.name, arguments=delta.arguments),
            )
            for delta in parts.calls
        ]
        delta = AssistantMessage(
            content=parts.content or (None if reasoning or calls else ""),
            reasoning=reasoning or None,
            reasoning_content=reasoning or None,
            tool_calls=calls or None,
        )
        choice = ChatChoice(
            index=piece.index,
            delta=delta,
            finish_reason=_finish_reason(parser, piece),
            stop_reason=piece.stop_reason(self._body.stop_token_ids),
            logprobs=ChatLogprobs(content=self._logprobs([piece])) if self._shows_logprobs else None,
            token_ids=[piece.token] if self._shows_ids else None,
        )
        return self._chunk(generation, choice)

    def choice(self, generation: Generation, index: int, pieces: list[Piece]) -> ChatChoice:
        """See Format."""
        parser = self._answers.parser(self._body, generation.prompts[0])
        parts = parser.feed("".join(piece.text for piece in pieces), last=pieces[-1].finish_reason is not None)
        arguments: dict[int, str] = {}
        for delta in parts.calls:
            arguments[delta.index] = arguments.get(delta.index, "") + delta.arguments
        reasoning = parts.reasoning if self._shows_reasoning else ""
        calls = [
            ToolCall(
                id=self._call_id(generation, index, delta.index),
                type="function",
                function=FunctionCall(name=delta.name, arguments=arguments[delta.index]),
            )
            for delta in parts.calls
            if delta.name is not None
        ]
        message = AssistantMessage(
            role="assistant",
            content=parts.content or (None if calls else ""),
            reasoning=reasoning or None,
            reasoning_content=reasoning or None,
            tool_calls=calls or None,
        )
        return ChatChoice(
            index=index,
            message=message,
            finish_reason=_finish_reason(parser, pieces[-1]),
            stop_reason=pieces[-1].stop_reason(self._body.stop_token_ids),
            logprobs=None,  # in `long_choice_fields`
            token_ids=[piece.token for piece in pieces] if self._shows_ids else None,
            prompt_token_ids=list(generation.prompt_of(index)) if self._body.return_token_ids else None,
        )

    def answer(self, generation: Generation, usage: Usage) -> ChatCompletion:
        """See Format."""
        return self._completion("chat.completion", generation, [], self._with_details(usage))

    async def long_choice_fields(self, generation: Generation, index: int, pieces: list[Piece]) -> dict[str, str]:
        """See Format."""
        await self._count_reasoning(generation, index, pieces)
        if not self._shows_logprobs:
            return {}
        known = [piece for piece in pieces if piece.logprobs is not None]
        size = max(1, SLICE_NUMBERS // (1 + (self._body.top_logprobs or 0)))
        parts = (self._logprobs(known[start : start + size]) for start in range(0, len(known), size))
        return {"logprobs": f'{{"content":{await entries_json(parts)}}}'}

    async def long_answer_fields(self, generation: Generation, first: Piece) -> dict[str, str]:
        """See Format."""
        if (count := self._body.prompt_logprobs) is None or first.prompt_logprobs is None:
            return {}
        numbers = PromptNumbers(generation.prompt_of(0), first.prompt_logprobs, count, self._texts)
        return {"prompt_logprobs": await entries_json(numbers.entries())}

    def usage_chunk(self, generation: Generation, usage: Usage) -> ChatCompletion:
        """See Format."""
        return self._completion("chat.completion.chunk", generation, [], self._with_details(usage))

    async def _count_reasoning(self, generation: Generation, index: int, pieces: list[Piece]) -> None:
        parser = self._parsers[index] = self._answers.parser(self._body, generation.prompts[0])
        for number, piece in enumerate(pieces, 1):
            if parser.reasoning_is_over:
                return
            parser.feed(piece.text, last=piece.finish_reason is not None)
            if number % COUNTED_AT_ONCE == 0:
                await asyncio.sleep(0)

    def _with_details(self, usage: Usage) -> Usage:
        if self._answers.reasoning is None:
            return usage
        count = sum(parser.num_reasoning for parser in self._parsers.values())
        return ChatUsage(**dict(usage), completion_tokens_details=CompletionTokensDetails(reasoning_tokens=count))

    def _call_id(self, generation: Generation, choice: int, call: int) -> str:
        """Return the id of a call, the same whenever the response is built."""
        return self._answers.call_id(generation.request_id, choice, call)

    def _chunk(self, generation: Generation, choice: ChatChoice) -> ChatCompletion:
        return self._completion("chat.completion.chunk", generation, [choice], None)

    def _completion(
        self, kind: str, generation: Generation, choices: list[ChatChoice], usage: Usage | None
    ) -> ChatCompletion:
        return ChatCompletion(
            id=generation.request_id,
            object="chat.completion" if kind == "chat.completion" else "chat.completion.chunk",
            created=generation.created,
            model=self._model_name,
            choices=choices,
            usage=usage,
        )

    def _logprobs(self, pieces: list[Piece]) -> list[ChatTokenLogprob]:
        return [token_logprob(self._texts, piece) for piece in pieces if piece.logprobs is not None]


def token_logprob(texts: TokenTexts, piece: Piece) -> ChatTokenLogprob:
    """Return the log probabilities at a piece's token."""

    def of(token: int, logprob: float) -> TokenLogprob:
        return {"token": texts.label(token), "logprob": logprob, "bytes": texts.bytes_of(token)}

    logprobs = piece.logprobs or pb.Logprobs()
    top = [of(token, value) for token, value in zip(logprobs.token, logprobs.logprob, strict=True)]
    return {**of(piece.token, logprobs.sampled), "top_logprobs": top}


def _finish_reason(parser: AnswerParser, piece: Piece) -> Literal["stop", "length", "tool_calls"] | None:
    return "tool_calls" if parser.ends_with_calls and piece.finish_reason == "stop" else piece.finish_reason


async def chat_prompt(endpoint: Endpoint, body: ChatCompletionRequest, owner: str) -> list[int]:
    """Return the tokens of the messages, rendered by the chat template; raise what refuses them.

    `owner`: digest of the client's key.
    """
    endpoint.check(body.model, owner)
    check_generates(endpoint.engine.status)
    endpoint.answers.check(body)
    text = await rendered(endpoint, body, body.template_options, body.tools if body.tool_names else (), owner)
    # The template already contains the special tokens.
    return await endpoint.encode(text, "messages", owner, add_special_tokens=False)


async def rendered(
    endpoint: Endpoint,
    body: ChatCompletionRequest | TokenizeChatRequest,
    options: dict[str, Any],
    tools: Sequence[Tool],
    owner: str,
) -> str:
    """Return the text of the messages, with variables for the chat template; raise what refuses them."""
    caller = endpoint.caller(owner)
    if body.continue_final_message:
        return await endpoint.template.render_unfinished(body.messages, options, tools, caller)
    return await endpoint.template.render(body.messages, body.add_generation_prompt, options, tools, caller)


def room_after(endpoint: Endpoint, prompt: Sequence[int]) -> int:
    """Return the number of tokens that an answer can have after a prompt; raise RequestError if it is 0."""
    status = endpoint.engine.status
    room = status.longest - len(prompt)
    if room < 1:
        raise RequestError(
            f"the prompt is too long: the messages have {len(prompt)} tokens and leave no room for an answer; this "
            f"model's maximum context length is {status.max_model_len} tokens",
            "messages",
            CONTEXT_EXCEEDED,
        )
    return room


async def chat_generation(endpoint: Endpoint, body: ChatCompletionRequest, request: Request, prefix: str) -> Generation:
    """Render and check a conversation, and return the generation of its next message, with an id after `prefix`."""
    owner, limit = owner_of(request), endpoint.time_limit(request)
    async with limit.applied():
        prompt: Sequence[int] = await chat_prompt(endpoint, body, owner)
    max_tokens = body.max_completion_tokens or body.max_tokens
    if (wanted := body.truncate_prompt_tokens) is not None:
        num_answer = max_tokens or max(1, body.min_tokens)
        prompt = truncation_of(wanted, body.truncation_side, endpoint.engine.status.longest, num_answer).cut(prompt)
    if max_tokens is None:  # as in vLLM
        room = room_after(endpoint, prompt)
        max_tokens = min(room, endpoint.codec.max_new_tokens or room)
        of_model = "max_new_tokens of the model's generation_config.json"
        check_min_tokens(body, max_tokens, ROOM if max_tokens == room else of_model)
    elif (status := endpoint.engine.status).max_model_len:
        field = "max_tokens" if body.max_completion_tokens is None else "max_completion_tokens"
        check_length(len(prompt), max_tokens, status.max_model_len, status.num_slots, field, "messages")
    logprobs = (body.top_logprobs or 0) if body.logprobs else None
    return endpoint.generator.prepare(prefix, body, [prompt], max_tokens, logprobs, limit, owner, parent_of(request))


def add_chat(app: FastAPI, endpoint: Endpoint) -> None:
    """Add the route."""

    @app.post("/v1/chat/completions", response_model=ChatCompletion)
    async def chat_completions(body: ChatCompletionRequest, request: Request) -> Response:
        """Generate the assistant's message of a conversation."""
        generation = await chat_generation(endpoint, body, request, "chatcmpl-")
        style = ChatFormat(body, endpoint.name_of(body.model), endpoint.codec, endpoint.answers)
        recorder = endpoint.recorder(CHAT, body, generation, request)
        return await respond(request, body, endpoint.generator, generation, style, recorder)
