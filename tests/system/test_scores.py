"""Scores are the cosine similarities of transformers' activations, over HTTP, alone and beside generations."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import torch
from support.checkpoints import MAX_POSITIONS, make_model, with_tokenizer
from support.served import Served, eventually, serve, value
from tokenizers import Tokenizer

NAME = "gpt2-head64-tied"
QUERY = "Which plants eat insects?"
DOCUMENTS = [
    "Venus flytraps.",
    "A stone.",
    "Plants? " * 30,
    "été, über, ελληνικά, 日本語, \U0001f600",
    "Which plants eat insects?",
    "A stone.",
    "0",
]


@pytest.fixture(
    scope="module", params=[("last",), pytest.param(("mean", "--api-processes", "2"), marks=pytest.mark.long)]
)
def served(request, checkpoint, tmp_path_factory) -> Iterator[tuple[Served, Path, str]]:
    model = with_tokenizer(checkpoint(NAME), tmp_path_factory.mktemp("scores"))
    pooling, *others = request.param
    options = ("--dtype", "float32", "--token-budget", "64", "--served-model-name", "model", "--max-queue-depth", "16")
    with serve(model, "--embedding-pooling", pooling, *options, *others) as server:
        yield server, model, pooling


@torch.inference_mode()
def similarities(model: Path, pooling: str, first: str, others: list[str]) -> list[float]:
    """Return the cosine similarity of a text with each other, by transformers' model."""
    tokenizer, network = Tokenizer.from_file(str(model / "tokenizer.json")), make_model(NAME).base_model
    vectors = []
    for text in (first, *others):
        hidden = network(torch.tensor([tokenizer.encode(text).ids])).last_hidden_state[0]
        vectors.append(hidden.mean(dim=0) if pooling == "mean" else hidden[-1])
    found: list[float] = torch.nn.functional.cosine_similarity(vectors[0], torch.stack(vectors[1:])).tolist()
    return found


def num_tokens(model: Path, texts: set[str]) -> int:
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    return sum(len(tokenizer.encode(text).ids) for text in texts)


def post(served: Served, path: str, body: dict[str, Any]) -> Any:
    return httpx.post(f"{served.url}{path}", json=body, timeout=60).raise_for_status().json()


def test_scores_are_those_of_transformers(served):
    server, model, pooling = served
    expected = similarities(model, pooling, QUERY, DOCUMENTS)
    assert max(expected) - min(expected) > 0.1
    answer = post(server, "/v1/score", {"model": "model", "text_1": QUERY, "text_2": DOCUMENTS})
    found = [entry["score"] for entry in answer["data"]]
    assert found == pytest.approx(expected, abs=1e-4)
    assert found[1] == found[5]
    assert answer["usage"]["prompt_tokens"] == num_tokens(model, {QUERY, *DOCUMENTS})
    pairs = {"queries": DOCUMENTS[:3], "documents": DOCUMENTS[3:6]}
    expected = [
        similarities(model, pooling, *pair)[0]
        for pair in zip(pairs["queries"], ([text] for text in pairs["documents"]), strict=True)
    ]
    assert [entry["score"] for entry in post(server, "/score", pairs)["data"]] == pytest.approx(expected, abs=1e-4)


def test_the_official_client_ranks_as_transformers_does(served):
    server, model, pooling = served
    expected = similarities(model, pooling, QUERY, DOCUMENTS)
    order = sorted(range(len(DOCUMENTS)), key=lambda index: (-round(expected[index], 5), index))
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=60) as client:
        body = {"model": "model", "query": QUERY, "documents": DOCUMENTS, "top_n": 5}
        answer: Any = client.post("/rerank", cast_to=object, body=body)
    assert [result["index"] for result in answer["results"]] == order[:5]
    assert [result["document"]["text"] for result in answer["results"]] == [DOCUMENTS[index] for index in order[:5]]
    found = [result["relevance_score"] for result in answer["results"]]
    assert found == pytest.approx([expected[index] for index in order[:5]], abs=1e-4)


def test_a_score_is_the_product_of_the_vectors_that_embeddings_returns(served):
    server, _, _ = served
    first, second = (
        entry["embedding"] for entry in post(server, "/v1/embeddings", {"input": [QUERY, DOCUMENTS[0]]})["data"]
    )
    answer = post(server, "/v1/score", {"text_1": QUERY, "text_2": DOCUMENTS[0]})
    assert answer["data"][0]["score"] == pytest.approx(sum(map(float.__mul__, first, second)), abs=1e-6)


def test_rankings_beside_generations(served):
    """Neither changes the other, and nothing stays in the engine."""
    server, _, _ = served
    ranking = {"query": QUERY, "documents": DOCUMENTS[:3]}
    completion = {"prompt": "Once", "max_tokens": 12, "temperature": 0, "ignore_eos": True}

    async def ask(requests: list[tuple[str, dict[str, Any]]]) -> list[Any]:
        async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:
            answers = await asyncio.gather(*(client.post(path, json=body) for path, body in requests))
        return [answer.raise_for_status().json() for answer in answers]

    requests = [("/v1/rerank", ranking), ("/v1/completions", completion)]
    alone = [asyncio.run(ask([request]))[0] for request in requests]
    for ranked, completed in zip(*[iter(asyncio.run(ask(requests * 3)))] * 2, strict=True):
        assert completed["choices"][0]["text"] == alone[1]["choices"][0]["text"]
        for result, expected in zip(ranked["results"], alone[0]["results"], strict=True):
            assert result["index"] == expected["index"]
            assert result["relevance_score"] == pytest.approx(expected["relevance_score"], abs=1e-5)
    assert eventually(lambda: httpx.get(f"{server.url}/load").json() == {"server_load": 0})
    assert value(httpx.get(f"{server.url}/metrics").text, "num_requests_running") == 0


@pytest.mark.parametrize(
    ("path", "body", "param", "message"),
    [
        ("/v1/score", {"text_1": "a"}, "text_2", "text_2: Field required"),
        ("/v1/score", {"text_1": "a", "text_2": "b" * (MAX_POSITIONS + 1)}, "text_2", f"{MAX_POSITIONS + 1} tokens"),
        ("/rerank", {"query": "", "documents": ["a"]}, "query", "query: a text is empty"),
        (
            "/v2/rerank",
            {"query": "a", "documents": [*"bcdefghijklmnopqr"]},
            "documents",
            "documents: 18 texts, at most 16 can wait (--max-queue-depth)",
        ),
    ],
)
def test_bad_requests_name_the_field(served, path, body, param, message):
    response = httpx.post(f"{served[0].url}{path}", json=body, timeout=60)
    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["type"], error["param"]) == ("invalid_request_error", param)
    assert message in error["message"]
