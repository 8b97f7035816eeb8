"""/v1/score and /v1/rerank over an engine with known activations: pairs, order, usage, and what is refused."""

from __future__ import annotations

import asyncio
import json
import math
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from orca_master.bodies.body_checker import SMALL_BYTES
from orca_master.bodies.lengths import MAX_CHARACTERS, MIN_CHARACTERS, Lengths
from orca_master.bodies.prompts import MAX_PROMPTS
from orca_master.bodies.score_requests import RERANK_ROUTES, SCORE_ROUTES
from orca_master.bodies.validation import check_body, pack, unpack
from orca_master.endpoint.application import create_app
from orca_master.engine.messages import Output, Submission
from orca_master.errors import CONTEXT_EXCEEDED, RequestError
from orca_master.scheduling.request import FinishReason
from support.scripted_engine import END, MODEL, Scripted, ScriptedEngine, make_model

QUERY = "aab"
DOCUMENTS = ["b", "ab", "aab", "é", "ba", "b"]
RANKED = [2, 1, 4, 0, 5, 3]
"""The documents by their cosine to the query, those with equal ones in their order."""


class Counting(ScriptedEngine):
    """The activations of a text are its numbers of "a" and of "b", in one part for each token."""

    def __init__(self, codec: Any, answer: str, reason: FinishReason) -> None:
        super().__init__(codec, answer, reason)
        self.letters = [codec.encode(letter)[0] for letter in "ab"]
        self.factor = 1.0

    def _outputs(self, submission: Submission) -> Iterator[Output]:
        for place, token in enumerate(submission.prompt, 1):
            part = [self.factor * (token == letter) for letter in self.letters]
            reason = FinishReason.STOP if place == len(submission.prompt) else None
            yield Output(submission.request_id, None, reason, pooled=array("f", part).tobytes())


class Server(Scripted):
    """Has one application for all requests."""

    def __init__(self, model: Path, **options: Any) -> None:
        super().__init__(model, END, engine=Counting, **options)
        self.app = create_app(self.endpoint)


@pytest.fixture(scope="module")
def scripted(tmp_path_factory) -> Server:
    return Server(make_model(tmp_path_factory.mktemp("model"), ""))


def post(scripted: Server, path: str, body: dict[str, Any], **headers: str) -> httpx.Response:
    scripted.engine.submissions.clear()

    async def run() -> httpx.Response:
        transport = httpx.ASGITransport(scripted.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            content = json.dumps(body)  # httpx would refuse to send a lone surrogate
            return await client.post(path, content=content, headers={"Content-Type": "application/json", **headers})

    return asyncio.run(asyncio.wait_for(run(), 60))


def answer(scripted: Server, path: str, **body: Any) -> Any:
    response = post(scripted, path, body)
    assert response.status_code == 200, response.text
    return response.json()


def cosine(first: str, second: str) -> float:
    """Of the numbers of "a" and "b" in two texts."""
    vectors = [(text.count("a"), text.count("b")) for text in (first, second)]
    lengths = math.hypot(*vectors[0]) * math.hypot(*vectors[1])
    return sum(x * y for x, y in zip(*vectors, strict=True)) / lengths if lengths else 0.0


def embedded(scripted: Server) -> list[str]:
    return [scripted.codec.decode(list(submission.prompt)) for submission in scripted.engine.submissions]


@pytest.mark.parametrize("path", SCORE_ROUTES)
@pytest.mark.parametrize("names", [("text_1", "text_2"), ("queries", "documents"), ("queries", "items")])
@pytest.mark.parametrize(
    ("first", "second", "pairs"),
    [
        ("aab", "ab", [("aab", "ab")]),
        (["aab"], "ab", [("aab", "ab")]),
        ("aab", DOCUMENTS, [("aab", document) for document in DOCUMENTS]),
        (["aab"], DOCUMENTS, [("aab", document) for document in DOCUMENTS]),
        (["a", "b", "ab"], ["ab", "b", "a"], [("a", "ab"), ("b", "b"), ("ab", "a")]),
    ],
)
def test_a_text_with_each_other_or_texts_at_the_same_places(scripted, path, names, first, second, pairs):
    body = answer(scripted, path, **dict(zip(names, (first, second), strict=True)))
    assert [entry["score"] for entry in body["data"]] == pytest.approx([cosine(*pair) for pair in pairs], abs=1e-6)
    assert [(entry["index"], entry["object"]) for entry in body["data"]] == [(i, "score") for i in range(len(pairs))]
    assert body.keys() == {"id", "object", "created", "model", "data", "usage"}
    assert (body["object"], body["model"]) == ("list", MODEL)
    assert body["id"].startswith("score-")
    assert {submission.request_id.rpartition("-")[0] for submission in scripted.engine.submissions} == {body["id"]}


@pytest.mark.parametrize("path", RERANK_ROUTES)
def test_documents_are_ranked_and_equal_ones_keep_their_order(scripted, path):
    body = answer(scripted, path, model=MODEL, query=QUERY, documents=DOCUMENTS)
    results = body["results"]
    assert [result["index"] for result in results] == RANKED
    assert [result["document"] for result in results] == [{"text": DOCUMENTS[index]} for index in RANKED]
    expected = [cosine(QUERY, DOCUMENTS[index]) for index in RANKED]
    assert [result["relevance_score"] for result in results] == pytest.approx(expected, abs=1e-6)
    assert all(result["relevance_score"] <= 1 for result in results)
    assert body.keys() == {"id", "model", "usage", "results"}
    assert body["id"].startswith("rerank-")


@pytest.mark.parametrize(("top_n", "count"), [(0, 6), (None, 6), (1, 1), (4, 4), (6, 6), (7, 6)])
def test_only_the_best_documents_are_returned(scripted, top_n, count):
    results = answer(scripted, "/v1/rerank", query=QUERY, documents=DOCUMENTS, top_n=top_n)["results"]
    assert [result["index"] for result in results] == RANKED[:count]


@pytest.mark.parametrize(("wanted", "returned"), [(None, True), (True, True), (False, False)])
def test_documents_return_unless_they_are_not_asked_for(scripted, wanted, returned):
    body = answer(scripted, "/v1/rerank", query="a", documents="ab", return_documents=wanted)
    (result,) = body["results"]
    assert result.keys() == {"index", "relevance_score"} | ({"document"} if returned else set())


def test_a_text_is_embedded_and_counted_once(scripted):
    body = answer(scripted, "/v1/rerank", query="aab", documents=["b", "aab", "b", "é"])
    assert embedded(scripted) == ["aab", "b", "é"]
    assert body["usage"] == {"prompt_tokens": 6, "total_tokens": 6}
    body = answer(scripted, "/v1/score", text_1=["a", "b"], text_2=["b", "a"])
    assert embedded(scripted) == ["a", "b"]
    assert body["usage"]["prompt_tokens"] == 2
    assert [entry["score"] for entry in body["data"]] == [0.0, 0.0]


def test_a_vector_of_zeros_is_similar_to_nothing(scripted):
    body = answer(scripted, "/v1/score", text_1="é", text_2=["é", "a"])
    assert [entry["score"] for entry in body["data"]] == [0.0, 0.0]


@pytest.mark.parametrize("factor", [math.nan, math.inf])
def test_activations_that_are_no_numbers_are_an_error(scripted, monkeypatch, factor):
    monkeypatch.setattr(scripted.engine, "factor", factor)
    response = post(scripted, "/v1/rerank", {"query": "a", "documents": ["b"]})
    assert (response.status_code, response.json()["error"]["code"]) == (500, "engine_error")


def test_texts_of_any_writing_return_as_they_were_sent(scripted):
    documents = ["ελληνικά", "日本語 \U0001f600", 'a"\\\n\0', "a\u2028"]
    results = answer(scripted, "/v1/rerank", query="a", documents=documents)["results"]
    assert {result["index"]: result["document"]["text"] for result in results} == dict(enumerate(documents))


def test_a_large_body_is_checked_in_another_process(scripted):
    documents = ["a" * number + "b" * 9000 for number in range(1, 51)]
    assert sum(map(len, documents)) > SMALL_BYTES
    results = answer(scripted, "/v1/rerank", query="a", documents=documents, return_documents=False)["results"]
    assert [result["index"] for result in results] == list(reversed(range(50)))


@pytest.mark.parametrize("path", ["/v1/score", "/v1/rerank"])
def test_long_texts_are_cut_like_those_of_embeddings(scripted, path):
    names = ("text_1", "text_2") if path == "/v1/score" else ("query", "documents")
    body = dict(zip(names, ("abbb", ["aabb"]), strict=True))
    assert answer(scripted, path, **body, truncate_prompt_tokens=2)["usage"]["total_tokens"] == 4
    assert embedded(scripted) == ["ab", "aa"]
    answer(scripted, path, **body, truncate_prompt_tokens=2, truncation_side="left")
    assert embedded(scripted) == ["bb", "bb"]


LONG = "a" * 10001


@pytest.mark.parametrize(
    ("path", "body", "param", "message"),
    [
        ("/v1/score", {}, "text_1", "text_1: Field required"),
        ("/v1/score", {"text_1": "a"}, "text_2", "text_2: Field required"),
        ("/v1/score", {"queries": "a"}, "documents", "documents: Field required"),
        ("/v1/score", {"documents": "a"}, "queries", "queries: Field required"),
        ("/v1/score", {"items": ["a"]}, "queries", "queries: Field required"),
        ("/v1/score", {"text_1": "a", "text_2": None}, "text_2", "text_2"),
        ("/v1/score", {"text_1": "", "text_2": "b"}, "text_1", "text_1: a text is empty"),
        ("/v1/score", {"text_1": "a", "text_2": ["b", ""]}, "text_2", "text_2: a text is empty"),
        ("/v1/score", {"text_1": "a", "text_2": []}, "text_2", "text_2: List should have at least 1 item"),
        ("/v1/score", {"text_1": [1, 2], "text_2": "a"}, "text_1", "text_1.0: Input should be a valid string"),
        ("/v1/score", {"text_1": 1, "text_2": "a"}, "text_1", "text_1: Input should be a valid string"),
        ("/v1/score", {"text_1": "a", "text_2": {"content": []}}, "text_2", "text_2: Input should be a valid string"),
        (
            "/v1/score",
            {"text_1": ["a", "b"], "text_2": ["a", "b", "c"]},
            "text_1",
            "text_1: 2 texts, and 3 of text_2: send one text, or as many as of text_2",
        ),
        ("/v1/score", {"queries": ["a", "b"], "items": "a"}, "queries", "queries: 2 texts, and 1 of items"),
        ("/v1/score", {"text_1": LONG, "text_2": "a"}, "text_1", "text_1: a text has 10001 tokens, at most 10000"),
        ("/v1/score", {"text_1": "a", "text_2": ["b", LONG]}, "text_2", "text_2: a text has 10001 tokens"),
        ("/v1/score", {"text_1": "a", "text_2": "\ud800"}, "text_2", "a lone surrogate at character 0"),
        ("/v1/score", {"text_1": "a", "text_2": "b", "top_n": 1}, "top_n", "unknown or not supported"),
        ("/v1/score", {"text_1": "a", "text_2": "b", "max_tokens_per_doc": 8}, "max_tokens_per_doc", "send truncate_"),
        ("/v1/score", {"text_1": "a", "text_2": "b", "priority": 1 << 40}, "priority", "priority"),
        ("/v1/rerank", {"documents": ["a"]}, "query", "query: Field required"),
        ("/v1/rerank", {"query": "a"}, "documents", "documents: Field required"),
        ("/v1/rerank", {"query": "", "documents": ["a"]}, "query", "query: a text is empty"),
        ("/v1/rerank", {"query": ["a"], "documents": ["a"]}, "query", "query: Input should be a valid string"),
        ("/v1/rerank", {"query": "a", "documents": []}, "documents", "documents: List should have at least 1 item"),
        ("/v1/rerank", {"query": "a", "documents": [{"text": "a"}]}, "documents", "documents.0: Input should be a"),
        ("/v1/rerank", {"query": "a", "documents": ["b", LONG]}, "documents", "documents: a text has 10001 tokens"),
        ("/v1/rerank", {"query": "a", "documents": ["b"] * 1025}, "documents", "at most 1024 items"),
        ("/v1/rerank", {"query": "a", "documents": ["b"], "top_n": -1}, "top_n", "top_n"),
        ("/v1/rerank", {"query": "a", "documents": ["b"], "top_n": "1.5"}, "top_n", "top_n"),
        ("/v1/rerank", {"query": "a", "documents": ["b"], "return_documents": 2}, "return_documents", "return_doc"),
        ("/v1/rerank", {"query": "a", "documents": ["b"], "rank_fields": ["t"]}, "rank_fields", "documents are texts"),
        (
            "/v1/rerank",
            {"query": "a", "documents": ["b"], "truncate_prompt_tokens": 10001},
            "truncate_prompt_tokens",
            "10001 tokens of the prompt, at most 10000",
        ),
        (
            "/v1/rerank",
            {"query": "a", "documents": ["b" * (number + 1) for number in range(100)]},
            "documents",
            "documents: 101 texts, at most 100 can wait (--max-queue-depth)",
        ),
    ],
)
def test_a_refusal_names_the_field(scripted, path, body, param, message):
    response = post(scripted, path, body)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert (error["type"], error["param"]) == ("invalid_request_error", param)
    assert message in error["message"]
    assert scripted.engine.submissions == []


@pytest.mark.parametrize("path", [*SCORE_ROUTES, *RERANK_ROUTES])
def test_what_all_routes_refuse(tmp_path, path):
    names = ("text_1", "text_2") if path in SCORE_ROUTES else ("query", "documents")
    body = dict(zip(names, ("a", ["b"]), strict=True))
    scripted = Server(make_model(tmp_path, ""), api_keys=frozenset({"0" * 64}))
    assert post(scripted, path, body).status_code == 401
    scripted = Server(make_model(tmp_path, ""))
    assert post(scripted, path, {**body, "model": "other"}).status_code == 404
    late = post(scripted, path, body, **{"X-Request-Deadline": "none"})
    assert (late.status_code, "X-Request-Deadline" in late.text) == (400, True)


def test_a_text_that_is_too_long_to_be_tokenized_is_refused_with_the_routes_that_take_token_ids(scripted):
    """These routes do not: "send a longer text as token ids" was no way out."""
    documents = ["a" * MIN_CHARACTERS, "a" * (MIN_CHARACTERS + 1)]
    error = post(scripted, "/v1/rerank", {"query": "a", "documents": documents}).json()["error"]
    assert (error["param"], error["code"]) == ("documents", CONTEXT_EXCEEDED)
    assert error["message"].endswith("send a shorter text, or token ids to /v1/completions or /v1/embeddings")


def test_both_sides_together_have_as_many_characters_as_the_prompts_of_a_request():
    half = ["a" * (MAX_CHARACTERS // MAX_PROMPTS)] * (MAX_PROMPTS // 2)
    body = {"text_1": half, "text_2": half}
    assert check_body("score", json.dumps(body).encode(), Lengths()).texts("text_1") == half
    with pytest.raises(RequestError, match=r"^text_2: 8388609 characters together with text_1, at most 8388608"):
        check_body("score", json.dumps({**body, "text_2": [*half[1:], f"{half[0]}a"]}).encode(), Lengths())


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("score", {"text_1": "a", "text_2": ["b", "c"], "documents": None}),
        ("score", {"queries": ["a", "b"], "documents": ["b", "c"], "truncate_prompt_tokens": -1}),
        ("score", {"queries": "a", "items": "b", "use_activation": True}),
        ("rerank", {"query": "a", "documents": ["b"], "top_n": 2, "return_documents": False, "max_tokens_per_doc": 0}),
    ],
)
def test_a_body_is_the_same_after_the_transfer_between_processes(kind, body):
    value = check_body(kind, json.dumps(body).encode(), Lengths(64))
    assert unpack(kind, *pack(value)) == value
