"""POST /v1/completions: completions of one or several prompts, as text or token ids."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import cast

from fastapi import FastAPI, Request, Response

from orca_master.bodies.openai_requests import CompletionRequest
from orca_master.endpoint.choice_run import Piece
from orca_master.endpoint.endpoint import Endpoint
from orca_master.endpoint.generation import Generation
from orca_master.endpoint.middleware import owner_of
from orca_master.endpoint.openai_answers import Completion, CompletionChoice, CompletionLogprobs, Usage
from orca_master.endpoint.request_deadline import requested_timeout
from orca_master.endpoint.responding import respond
from orca_master.endpoint.resumable_request import COMPLETIONS
from orca_master.text.tokenizer import TextCodec


class CompletionFormat:
    """`Format` of completions."""

    def __init__(self, body: CompletionRequest, model_name: str, codec: TextCodec) -> None:
        self._body = body
        self._model_name = model_name
        self._codec = codec
        self._offsets: dict[int, int] = {}
        self._echo = ""

    def opening(self, generation: Generation) -> Iterator[Completion]:
        """Yield the prompts, with `echo` or `return_token_ids`."""
        if self._body.echo or self._body.return_token_ids:
            for choice in generation.choices:
                yield self._completion(generation, [self._choice(generation, choice.index, [], opening=True)])

    @property
    def only_text_varies(self) -> bool:
        """See Format."""
        return self._body.logprobs is None and not self._body.return_token_ids

    def chunk(self, generation: Generation, piece: Piece) -> Completion:
        """See Format."""
        return self._completion(generation, [self._choice(generation, piece.index, [piece], opening=False)])

    def choice(self, generation: Generation, index: int, pieces: list[Piece]) -> CompletionChoice:
        """See Format."""
        return self._choice(generation, index, pieces, opening=True)

    def answer(self, generation: Generation, usage: Usage) -> Completion:
        """See Format."""
        return self._completion(generation, [], usage)

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
        prompt = generation.prompt_of(index)
        echo = self._echo_of(index, prompt) if opening and self._body.echo else ""
        wants_ids = self._body.return_token_ids
        return CompletionChoice(
            index=index,
            text=echo + "".join(piece.text for piece in pieces),
            finish_reason=pieces[-1].finish_reason if pieces else None,
            logprobs=self._logprobs(index, pieces) if self._body.logprobs is not None and pieces else None,
            token_ids=[piece.token for piece in pieces] if wants_ids and pieces else None,
            prompt_token_ids=list(prompt) if wants_ids and opening else None,
        )

    def _echo_of(self, index: int, prompt: Sequence[int]) -> str:
        """Return the text of a prompt, decoded once for its n consecutive choices."""
        if index % self._body.n == 0:
            self._echo = self._codec.decode(list(prompt), skip_special_tokens=True)
        return self._echo

    def _logprobs(self, index: int, pieces: list[Piece]) -> CompletionLogprobs:
        logprobs = CompletionLogprobs()
        for piece in pieces:
            assert piece.logprobs is not None
            token = self._codec.decode([piece.token])
            top = zip(piece.logprobs.token, piece.logprobs.logprob, strict=True)
            logprobs.tokens.append(token)
            logprobs.token_logprobs.append(piece.logprobs.sampled)
            logprobs.top_logprobs.append({self._codec.decode([other]): value for other, value in top})
            logprobs.text_offset.append(self._offsets.get(index, 0))
            self._offsets[index] = logprobs.text_offset[-1] + len(token)
        return logprobs


async def token_prompts(body: CompletionRequest, endpoint: Endpoint) -> list[Sequence[int]]:
    """Return the prompts as token ids; raise RequestError without a tokenizer."""
    if isinstance(body.prompt, str):
        return [await endpoint.encode(body.prompt, "prompt")]
    if isinstance(body.prompt[0], int):
        return [cast("Sequence[int]", body.prompt)]
    return [
        await endpoint.encode(prompt, "prompt") if isinstance(prompt, str) else cast("Sequence[int]", prompt)
        for prompt in body.prompt
    ]


def add_completions(app: FastAPI, endpoint: Endpoint) -> None:
    """Add the route."""

    @app.post("/v1/completions", response_model=Completion)
    async def completions(body: CompletionRequest, request: Request) -> Response:
        """Generate text that continues a prompt."""
        endpoint.check(body.model)
        prompts = await token_prompts(body, endpoint)
        timeout = requested_timeout(request.headers)
        generation = endpoint.generator.prepare(
            "cmpl-", body, prompts, body.max_tokens, body.logprobs, timeout, owner_of(request)
        )
        style = CompletionFormat(body, endpoint.model_name, endpoint.codec)
        recorder = endpoint.recorder(COMPLETIONS, body, generation, request)
        return await respond(request, body, endpoint.generator, generation, style, recorder)
