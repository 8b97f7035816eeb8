"""POST /v1/embeddings: one vector of length 1 for each text, the pooled activations after the model's final norm.

Every text is a submission to the engine that generates nothing. Its activations arrive as sums over the chunks of its
prompt. Vectors are normalised, as OpenAI's are, so the mean needs no division by the number of tokens.
"""

from __future__ import annotations

import asyncio
import base64
import json
import math
import secrets
import sys
from array import array
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Literal, NamedTuple, cast

from fastapi import FastAPI, Request, Response
from orca_contract.model_choices import Pooling
from pydantic import BaseModel

from orca_master.bodies.embedding_requests import EmbeddingRequest, PoolingRequest
from orca_master.bodies.truncation import truncation_of
from orca_master.endpoint.choice_run import failure_of, groups_of
from orca_master.endpoint.delivery import deliver_body
from orca_master.endpoint.endpoint import Endpoint
from orca_master.endpoint.generation import salt_of
from orca_master.endpoint.middleware import owner_of
from orca_master.endpoint.request_deadline import TimeLimit
from orca_master.endpoint.token_choice import check_token_ids
from orca_master.endpoint.trace_parent import parent_of
from orca_master.engine.engine_client import EngineClient, EngineStatus
from orca_master.engine.messages import Choices, Output, Submission, Trace
from orca_master.engine.request_limits import check_together
from orca_master.errors import CONTEXT_EXCEEDED, EngineError, RequestError
from orca_master.scheduling.sampling_parameters import SamplingParameters
from orca_master.text.sentence_file import FILE


class Embedding(BaseModel):
    """One entry of `data`; `embedding` is base64 of float32 values in little-endian order with that encoding."""

    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str


class EmbeddingUsage(BaseModel):
    """Token counts of one request."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingList(BaseModel):
    """Response of /v1/embeddings."""

    object: Literal["list"] = "list"
    data: list[Embedding]
    model: str
    usage: EmbeddingUsage


class Input(NamedTuple):
    """Token ids to embed, and the field of the body that has them."""

    field: str
    tokens: Sequence[int]


class EmbeddingRun:
    """The inputs of one request on the engine. `run` once. `note` is called at the end of each input."""

    def __init__(
        self, engine: EngineClient, submissions: Sequence[Submission], note: Callable[[], object] = lambda: None
    ) -> None:
        self._engine = engine
        self._submissions = submissions
        self._note = note
        self.num_tokens = sum(len(submission.prompt) for submission in submissions)
        self._sums: list[array[float]] = [array("d") for _ in submissions]
        self._num_left = len(submissions)
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def run(self) -> list[array[float]]:
        """Return the sum of activations of each input; raise the first refusal, or the error that ended an input."""
        submitted: list[Submission] = []
        refused: set[str] = set()
        try:
            for group in groups_of(self._submissions):
                first = len(submitted)
                submitted += group
                waits = [
                    self._engine.submit(submission, partial(self._receive, index))
                    for index, submission in enumerate(group, first)
                ]
                refusals = await asyncio.gather(*waits, return_exceptions=True)
                refused |= {entry.request_id for entry, error in zip(group, refusals, strict=True) if error is not None}
                if error := next((error for error in refusals if error is not None), None):
                    raise error
            await self._ended
        finally:
            self._ended.cancel()
            for submission in reversed(submitted):
                ended_as = None if submission.request_id in refused else "abort"
                self._engine.release(submission.request_id, ended_as)
        return self._sums

    def _receive(self, index: int, output: Output) -> None:
        if self._ended.done():
            return
        if (failure := failure_of(output)) is not None:
            self._ended.set_exception(failure)
            return
        if output.pooled is not None:
            total, part = self._sums[index], array("f", output.pooled)
            if sys.byteorder == "big":
                part.byteswap()
            self._sums[index] = array("d", map(float.__add__, total, part)) if total else array("d", part)
        if output.finish_reason is not None:
            self._num_left -= 1
            asyncio.get_running_loop().call_soon(self._note)  # its error is not one of the engine's outputs
            if self._num_left == 0:
                self._ended.set_result(None)


def unit_vector(values: array[float]) -> array[float]:
    """Return float32 values of length 1 in the direction of `values`; zeros stay zeros. Raises EngineError."""
    length = math.hypot(*values)
    if not math.isfinite(length):
        raise EngineError("the model's activations of a text are not finite numbers")
    return array("f", [value / length for value in values]) if length else array("f", values)


def encoded(vector: array[float], encoding_format: Literal["float", "base64"]) -> str:
    """Return the JSON of a float32 vector; nine digits identify a float32."""
    if encoding_format == "float":
        return f"[{','.join([f'{value:.9g}' for value in vector])}]"
    if sys.byteorder == "big":
        vector = array("f", vector)
        vector.byteswap()
    return f'"{base64.b64encode(vector.tobytes()).decode()}"'


def longest_input(status: EngineStatus, most: int | None) -> int:
    """Return the number of tokens that an input can have; `most`: see `check_inputs`."""
    return status.longest if most is None else min(most, status.longest)


def check_inputs(inputs: Sequence[Input], status: EngineStatus, most: int | None) -> None:
    """Raise RequestError for token ids or lengths that the model does not have, QueueFullError without room.

    `most`: tokens of an input, by a file of the model; None: those of the context.
    """
    limit = longest_input(status, most)
    origin = f" by max_seq_length of {FILE}" if limit < status.longest else ""
    for field, tokens in inputs:
        if not tokens:
            raise RequestError(f"{field}: a text is empty: at least one token is needed", field)
        if len(tokens) > limit:
            raise RequestError(
                f"{field}: a text has {len(tokens)} tokens, at most {limit} are possible{origin}: send a shorter part",
                field,
                CONTEXT_EXCEEDED,
            )
        check_token_ids(field, tokens, status.vocabulary_size)
    num_tokens = sum(len(tokens) for _, tokens in inputs)
    check_together(len(inputs), num_tokens, status, inputs[-1].field, f"{inputs[-1].field}: {len(inputs)} texts")


def new_id(kind: str) -> str:
    """Return the id of a new request, which begins with its kind."""
    return f"{kind}-{secrets.token_hex(16)}"


def submissions_of(
    name: str,
    inputs: Sequence[Sequence[int]],
    pooling: Pooling,
    priority: int,
    cache_salt: str,
    adapter: int,
    arrived: float,
    parent: Trace | None = None,
) -> list[Submission]:
    """Return the submissions of a request's inputs, which the queue accepts together or not at all.

    `name`: the request's id. `parent`: of the request's span, with the model's name; None for no span.
    """
    together = Choices(name, len(inputs), sum(map(len, inputs))) if len(inputs) > 1 else None
    trace = None if parent is None else replace(parent, request_id=name)
    return [
        Submission(
            f"{name}-{index}",
            array("I", tokens),
            0,
            SamplingParameters(),
            frozenset(),
            priority,
            choices=together,
            cache_salt=cache_salt,
            pooling=pooling,
            adapter=adapter,
            arrived=arrived,
            trace=trace,
        )
        for index, tokens in enumerate(inputs)
    ]


async def _inputs(
    texts: Sequence[tuple[str, str | Sequence[int]]], body: PoolingRequest, endpoint: Endpoint, owner: str
) -> list[Input]:
    """Return the token ids of texts, or token ids themselves, each with its field, cut as the body says.

    Raises RequestError without a tokenizer.
    """
    codec = endpoint.codec
    adds_tokens = body.add_special_tokens and isinstance(texts[0][1], str)
    ending = codec.ending if adds_tokens else []
    inputs = [
        Input(field, await endpoint.encode(codec.text_to_embed(text), field, owner, body.add_special_tokens) + ending)
        if isinstance(text, str)
        else Input(field, text)
        for field, text in texts
    ]
    if (wanted := body.truncate_prompt_tokens) is None:
        return inputs
    longest = longest_input(endpoint.engine.status, codec.max_embedded_tokens)
    truncation = truncation_of(wanted, body.truncation_side, longest)
    before, after = codec.num_added if adds_tokens else (0, 0)
    return [Input(field, truncation.cut(tokens, before, after + len(ending))) for field, tokens in inputs]


async def prepare(
    name: str,
    texts: Sequence[tuple[str, str | Sequence[int]]],
    body: PoolingRequest,
    request: Request,
    endpoint: Endpoint,
    limit: TimeLimit,
) -> EmbeddingRun:
    """Tokenize and check the texts of a request with the id `name`; return its run.

    `texts`: a field of the body and one of its texts, or its token ids. Raises RequestError, ModelNotFoundError,
    EngineUnavailableError, QueueFullError, or RequestTimeoutError at the end of `limit`.
    """
    owner = owner_of(request)
    endpoint.check(body.model, owner)
    async with limit.applied():
        inputs = await _inputs(texts, body, endpoint, owner)
    check_inputs(inputs, endpoint.engine.status, endpoint.codec.max_embedded_tokens)
    adapter, salt = endpoint.models.number_of(body.model, owner), salt_of(owner, body.cache_salt)
    pooling = endpoint.config.embedding_pooling
    parent = replace(parent_of(request), model=endpoint.name_of(body.model))
    tokens = [entry.tokens for entry in inputs]
    submissions = submissions_of(name, tokens, pooling, body.priority, salt, adapter, limit.arrived, parent)
    return EmbeddingRun(endpoint.engine, submissions)


async def unit_vectors(run: EmbeddingRun, limit: TimeLimit) -> AsyncIterator[array[float]]:
    """Run; yield the vector of each input, and to the event loop after each."""
    async with limit.applied():
        sums = await run.run()
    for values in sums:
        yield unit_vector(values)
        await asyncio.sleep(0)


async def _answer(endpoint: Endpoint, body: EmbeddingRequest, run: EmbeddingRun, limit: TimeLimit) -> bytes:
    """Return the response as JSON."""
    data = [b'{"object":"list","data":[']
    with endpoint.generator.activity.one():
        async for values in unit_vectors(run, limit):
            index, vector = len(data) - 1, encoded(values, body.encoding_format)
            data.append(f'{"," * (index > 0)}{{"object":"embedding","index":{index},"embedding":{vector}}}'.encode())
    count = run.num_tokens
    rest = {"model": endpoint.name_of(body.model), "usage": {"prompt_tokens": count, "total_tokens": count}}
    return b"".join([*data, b"],", json.dumps(rest)[1:].encode()])


def add_embeddings(app: FastAPI, endpoint: Endpoint) -> None:
    """Add the route."""

    @app.post("/v1/embeddings", response_model=EmbeddingList)
    async def embeddings(body: EmbeddingRequest, request: Request) -> Response:
        """Return an embedding of each text."""
        limit = endpoint.time_limit(request)
        single = isinstance(body.input, str) or isinstance(body.input[0], int)
        entries = cast("Sequence[str | Sequence[int]]", [body.input] if single else body.input)
        run = await prepare(new_id("embd"), [("input", entry) for entry in entries], body, request, endpoint, limit)
        return await deliver_body(request, _answer(endpoint, body, run, limit))
