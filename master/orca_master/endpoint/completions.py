"""POST /v1/completions: completions of one or several prompts, as text or token ids."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import cast

from fastapi import FastAPI, Request, Response
from orca_protos import engine_pb2 as pb

from orca_master.bodies.openai_requests import CompletionRequest
from orca_master.bodies.truncation import truncation_of
from orca_master.endpoint.choice_run import Piece
from orca_master.endpoint.endpoint import Endpoint
from orca_master.endpoint.generation import Generation
from orca_master.endpoint.middleware import owner_of
from orca_master.endpoint.openai_answers import Completion, CompletionChoice, CompletionLogprobs, Usage
from orca_master.endpoint.prompt_logprobs import (
    SLICE_NUMBERS,
    PromptNumbers,
    TextOffsets,
    entries_json,
    lists_json,
    texts_for,
)
from orca_master.endpoint.recorded_body import COMPLETIONS
from orca_master.endpoint.responding import respond
from orca_master.endpoint.trace_parent import parent_of
from orca_master.text.tokenizer import TextCodec


class CompletionFormat:
    """`Format` of completions."""

    def __init__(self, body: CompletionRequest, model_name: str, codec: TextCodec) -> None:
        self._body = body
        self._model_name = model_name
        self._codec = codec
        self._texts = texts_for(body, codec)
        self._offsets: dict[int, TextOffsets] = {}
        """Of the answers, by choice."""
        self._echo = ""
        self._of_prompt = pb.PromptLogprobs()
        """Of the prompt of the last first choice."""
        self._echoes_logprobs = body.echo and body.logprobs is not None

    def opening(self, generation: Generation) -> Iterator[Completion]:
        """Yield the prompts, with `echo` or `return_token_ids`, unless they follow with log probabilities."""
        if (self._body.echo or self._body.return_token_ids) and not self._echoes_logprobs:
            for choice in generation.choices:
                yield self._completion(generation, [self._choice(generation, choice.index, [], opening=True)])

    @property
    def only_text_varies(self) -> bool:
        """See Format."""
        return self._body.logprobs is None and not self._body.return_token_ids

    def prompt_chunks(self, generation: Generation, piece: Piece) -> Iterator[Completion]:
        """Yield the prompt and its log probabilities for each choice, its text in the first chunk."""
        if not self._echoes_logprobs or piece.prompt_logprobs is None:
            return
        for index in range(piece.index, piece.index + generation.choices_per_prompt):
            choice = self._choice(generation, index, [], opening=True)
            for part in self._prompt_lists(generation, index, piece.prompt_logprobs):
                yield self._completion(generation, [choice.model_copy(update={"logprobs": part})])
                choice = CompletionChoice(index=index, text="", finish_reason=None)

    def chunk(self, generation: Generation, piece: Piece) -> Completion:
        """See Format."""
        return self._completion(generation, [self._choice(generation, piece.index, [piece], opening=False)])

    def choice(self, generation: Generation, index: int, pieces: list[Piece]) -> CompletionChoice:
        """See Format."""
        return self._choice(generation, index, pieces, opening=True)

    async def long_choice_fields(self, generation: Generation, index: int, pieces: list[Piece]) -> dict[str, str]:
        """See Format."""
        fields: dict[str, str] = {}
        if pieces[0].prompt_logprobs is not None:
            self._of_prompt = pieces[0].prompt_logprobs
        if self._body.logprobs is not None:
            fields["logprobs"] = await lists_json(self._all_lists(generation, index, pieces))
        if (count := self._body.prompt_logprobs) is not None:
            numbers = PromptNumbers(generation.prompt_of(index), self._of_prompt, count, self._texts)
            fields["prompt_logprobs"] = await entries_json(numbers.entries())
        return fields

    def answer(self, generation: Generation, usage: Usage) -> Completion:
        """See Format."""
        return self._completion(generation, [], usage)

    async def long_answer_fields(self, generation: Generation, first: Piece) -> dict[str, str]:
        """See Format."""
        return {}

    def usage_chunk(self, generation: Generation, usage: Usage) -> Completion:
        """See Format."""
        return self._completion(generation, [], usage)

    def _completion(
        self, generation: Generation, choices: list[CompletionChoice], usage: Usage | None = None
    ) -> Completion:
        return Completion(
            id=generation.request_id,
            created=generation.created,
            model=self._model_name,
            choices=choices,
            usage=usage,
        )

    def _choice(self, generation: Generation, index: int, pieces: list[Piece], opening: bool) -> CompletionChoice:
        prompt, kept = generation.prompt_of(index), self._kept(pieces)
        echo = self._echo_of(generation, index) if opening and self._body.echo else ""
        wants_ids = self._body.return_token_ids
        finish_reason = pieces[-1].finish_reason if pieces else None
        wants_logprobs = self._body.logprobs is not None and not opening  # else `long_choice_fields`, `prompt_chunks`
        return CompletionChoice(
            index=index,
            text=echo + "".join(piece.text for piece in kept),
            finish_reason=finish_reason if kept or finish_reason is None else "length",
            stop_reason=kept[-1].stop_reason(self._body.stop_token_ids) if kept else None,
            logprobs=self._logprobs(generation, index, kept) if wants_logprobs and kept else None,
            token_ids=[piece.token for piece in kept] if wants_ids and pieces else None,
            prompt_token_ids=list(prompt) if wants_ids and opening else None,
        )

    def _kept(self, pieces: list[Piece]) -> list[Piece]:
        """Return the pieces of the answer: none with `max_tokens` 0, for which the engine generates a token, too."""
        return pieces if self._body.max_tokens else []

    def _echo_of(self, generation: Generation, index: int) -> str:
        """Return the text of a prompt; token ids are decoded once for their consecutive choices."""
        if index % generation.choices_per_prompt == 0:
            text = self._text_of(generation, index)
            prompt = list(generation.prompt_of(index))
            self._echo = self._codec.decode(prompt, self._body.skip_special_tokens) if text is None else text
        return self._echo

    def _text_of(self, generation: Generation, index: int) -> str | None:
        """Return the prompt as the client sent it, None for token ids and for texts of which tokens may be removed."""
        if self._body.texts is None or self._body.truncate_prompt_tokens is not None:
            return None
        return self._body.texts[index // generation.choices_per_prompt]

    def _prompt_lists(
        self, generation: Generation, index: int, found: pb.PromptLogprobs
    ) -> Iterator[CompletionLogprobs]:
        """Yield the log probabilities of a choice's prompt, after whose text the offsets of its answer continue."""
        self._answer_offsets(generation, index, len(self._echo_of(generation, index)))
        numbers = PromptNumbers(generation.prompt_of(index), found, self._body.logprobs or 0, self._texts)
        text = self._text_of(generation, index)
        in_ids = self._texts.offsets(0, self._body.skip_special_tokens)
        yield from numbers.lists(in_ids if text is None else self._texts.offsets_in(text))

    def _all_lists(self, generation: Generation, index: int, pieces: list[Piece]) -> Iterator[CompletionLogprobs]:
        """Yield the log probabilities of a choice: with `echo` its prompt's, then its answer's, slice by slice."""
        if self._body.echo:
            yield from self._prompt_lists(generation, index, self._of_prompt)
        kept = self._kept(pieces)
        size = max(1, SLICE_NUMBERS // (1 + (self._body.logprobs or 0)))
        for start in range(0, len(kept), size):
            yield self._logprobs(generation, index, kept[start : start + size])

    def _logprobs(self, generation: Generation, index: int, pieces: list[Piece]) -> CompletionLogprobs:
        logprobs = CompletionLogprobs()
        if (offsets := self._offsets.get(index)) is None:
            offsets = self._answer_offsets(generation, index, 0)
        for piece in pieces:
            assert piece.logprobs is not None
            sampled = piece.token, piece.logprobs.sampled
            logprobs.tokens.append(self._texts.label(piece.token))
            logprobs.token_logprobs.append(piece.logprobs.sampled)
            logprobs.top_logprobs.append(self._texts.by_text(piece.logprobs.token, piece.logprobs.logprob, sampled))
            logprobs.text_offset.append(offsets.next(piece.token))
        return logprobs

    def _answer_offsets(self, generation: Generation, index: int, start: int) -> TextOffsets:
        prompt = generation.prompt_of(index)
        self._offsets[index] = self._texts.offsets(start, self._body.skip_special_tokens, before=prompt)
        return self._offsets[index]


async def token_prompts(body: CompletionRequest, endpoint: Endpoint, owner: str) -> list[Sequence[int]]:
    """Return the prompts as token ids, cut as the body says; raise RequestError without a tokenizer."""
    tokens: list[Sequence[int]]
    if body.texts is not None:
        tokens = [await endpoint.encode(text, "prompt", owner, body.add_special_tokens) for text in body.texts]
    else:
        tokens = cast("list[Sequence[int]]", [body.prompt] if isinstance(body.prompt[0], int) else body.prompt)
    if (wanted := body.truncate_prompt_tokens) is None:
        return tokens
    truncation = truncation_of(wanted, body.truncation_side, endpoint.engine.status.longest, max(1, body.max_tokens))
    added = endpoint.codec.num_added if body.texts is not None and body.add_special_tokens else (0, 0)
    return [truncation.cut(prompt, *added) for prompt in tokens]


def add_completions(app: FastAPI, endpoint: Endpoint) -> None:
    """Add the route."""

    @app.post("/v1/completions", response_model=Completion)
    async def completions(body: CompletionRequest, request: Request) -> Response:
        """Generate text that continues a prompt."""
        owner, limit = owner_of(request), endpoint.time_limit(request)
        endpoint.check(body.model, owner)
        async with limit.applied():
            prompts = await token_prompts(body, endpoint, owner)
        tokens, logprobs, parent = body.max_tokens, body.logprobs, parent_of(request)
        generation = endpoint.generator.prepare("cmpl-", body, prompts, tokens, logprobs, limit, owner, parent)
        style = CompletionFormat(body, endpoint.name_of(body.model), endpoint.codec)
        recorder = endpoint.recorder(COMPLETIONS, body, generation, request)
        return await respond(request, body, endpoint.generator, generation, style, recorder)
