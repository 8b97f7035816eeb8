"""POST /v1/score and /v1/rerank, and vLLM's further paths: similarities of pairs of texts, by their embeddings.

The score of a pair is the cosine similarity of the vectors that /v1/embeddings would return, from -1 to 1. A text that
a request has several times is embedded and counted once.
"""

from __future__ import annotations

import asyncio
import operator
import time
from collections.abc import Callable
from typing import Literal

from fastapi import FastAPI, Request, Response
from pydantic import BaseModel

from orca_master.bodies.score_requests import RERANK_ROUTES, SCORE_ROUTES, PairsRequest, RerankRequest, ScoreRequest
from orca_master.endpoint.delivery import deliver_body
from orca_master.endpoint.embeddings import EmbeddingRun, EmbeddingUsage, new_id, prepare, unit_vectors
from orca_master.endpoint.endpoint import Endpoint
from orca_master.endpoint.request_deadline import TimeLimit


class Score(BaseModel):
    """One entry of `data`: the score of the pair at the place `index`."""

    index: int
    object: Literal["score"] = "score"
    score: float


class ScoreList(BaseModel):
    """Response of /v1/score."""

    id: str
    object: Literal["list"] = "list"
    created: int
    model: str
    data: list[Score]
    usage: EmbeddingUsage


class RankedDocument(BaseModel):
    """A document of the request."""

    text: str


class RankedResult(BaseModel):
    """One entry of `results`; `index`: of the document in the request; `document` is absent if it is not asked for."""

    index: int
    document: RankedDocument | None = None
    relevance_score: float


class Ranking(BaseModel):
    """Response of /v1/rerank, from the highest score to the lowest; equal scores in the order of the request."""

    id: str
    model: str
    usage: EmbeddingUsage
    results: list[RankedResult]


async def _similarities(body: PairsRequest, run: EmbeddingRun, limit: TimeLimit) -> list[float]:
    """Return the score of each pair. Yields to the event loop after each."""
    vectors = dict(zip(body.distinct, [vector async for vector in unit_vectors(run, limit)], strict=True))
    scores = []
    for first, second in body.pairs:
        product = sum(map(operator.mul, vectors[first], vectors[second]))
        scores.append(max(-1.0, min(1.0, product)))  # vectors are rounded to float32
        await asyncio.sleep(0)
    return scores


async def _respond(
    name: str,
    body: PairsRequest,
    request: Request,
    endpoint: Endpoint,
    answer: Callable[[list[float], EmbeddingUsage], BaseModel],
) -> Response:
    """Return the response of the request with the id `name`: what `answer` makes of scores and usage."""
    limit = endpoint.time_limit(request)
    texts = [(field, text) for text, field in body.distinct.items()]
    run = await prepare(name, texts, body, request, endpoint, limit)
    usage = EmbeddingUsage(prompt_tokens=run.num_tokens, total_tokens=run.num_tokens)

    async def answered() -> bytes:
        with endpoint.generator.activity.one():
            scores = await _similarities(body, run, limit)
        return answer(scores, usage).model_dump_json(exclude_none=True).encode()

    return await deliver_body(request, answered())


def add_scores(app: FastAPI, endpoint: Endpoint) -> None:
    """Add the routes."""

    async def score(body: ScoreRequest, request: Request) -> Response:
        """Return the similarity of each pair of texts."""
        name, created, model = new_id("score"), int(time.time()), endpoint.name_of(body.model)

        def answer(scores: list[float], usage: EmbeddingUsage) -> ScoreList:
            data = [Score(index=index, score=value) for index, value in enumerate(scores)]
            return ScoreList(id=name, created=created, model=model, data=data, usage=usage)

        return await _respond(name, body, request, endpoint, answer)

    async def rerank(body: RerankRequest, request: Request) -> Response:
        """Return the documents in the order of their similarity to the query."""
        name, model, texts = new_id("rerank"), endpoint.name_of(body.model), body.texts("documents")
        documents = [RankedDocument(text=text) if body.return_documents else None for text in texts]

        def answer(scores: list[float], usage: EmbeddingUsage) -> Ranking:
            best = sorted(range(len(scores)), key=lambda index: -scores[index])[: body.top_n or None]
            results = [
                RankedResult(index=index, document=documents[index], relevance_score=scores[index]) for index in best
            ]
            return Ranking(id=name, model=model, usage=usage, results=results)

        return await _respond(name, body, request, endpoint, answer)

    for path in SCORE_ROUTES:
        app.post(path, response_model=ScoreList)(score)
    for path in RERANK_ROUTES:
        app.post(path, response_model=Ranking)(rerank)
