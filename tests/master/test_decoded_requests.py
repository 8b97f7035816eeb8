"""A client that polls an answer: each token is decoded once, within a bound of memory, and the answer is the same."""

from __future__ import annotations

import asyncio
from array import array
from pathlib import Path

import pytest
from orca_master.endpoint import decoded_requests
from orca_master.endpoint.choice_run import PIECE_BYTES, Piece
from orca_master.endpoint.decoded_requests import DecodedRequests
from orca_master.endpoint.generation import Generator
from orca_master.endpoint.resumable_request import ResumableRequest
from orca_master.endpoint.served_models import ServedModels
from orca_master.engine.messages import Output
from orca_master.errors import RequestError
from orca_master.journal.journal import Journal
from orca_master.journal.records import Accepted
from orca_master.scheduling.request import FinishReason
from orca_master.text.detokenizer import IncrementalDecoder
from orca_master.text.tokenizer import TextCodec
from support.idle_engine import Idle

DEMO = Path(__file__).parents[2] / "examples" / "demo-model"


@pytest.fixture
def generator() -> Generator:
    engine = Idle()
    return Generator(engine, TextCodec(DEMO), ServedModels(("m",), (), engine), 1 << 20)


@pytest.fixture
def request_of(tmp_path):
    """Return a function that makes a request of two choices, whose answers end with a stop string."""
    journals: list[Journal] = []

    def make(name: str = "a") -> ResumableRequest:
        journals.append(journal := Journal(tmp_path / name, "m"))
        accepted = Accepted(name, "completions", {"n": 2, "stop": ["zz"]}, [array("I", [1])], 900, None, 1, 1, "")
        return ResumableRequest(journal, accepted, lambda _: None, lambda _: None)

    yield make
    for journal in journals:
        journal.close()


@pytest.fixture
def steps(monkeypatch) -> list[int]:
    """Return the list of the tokens that are decoded."""
    tokens: list[int] = []
    step = IncrementalDecoder.step

    def noted(decoder: IncrementalDecoder, token: int, last: bool, stops: bool = False) -> str:
        tokens.append(token)
        return step(decoder, token, last, stops)

    monkeypatch.setattr(IncrementalDecoder, "step", noted)
    return tokens


def note(request: ResumableRequest, choice: int, token: int, num_cached: int = 0, last: bool = False) -> None:
    request.note(choice, Output("a", token, FinishReason.LENGTH if last else None, num_cached=num_cached))


def anew(request: ResumableRequest, generator: Generator) -> list[list[Piece]]:
    """Return the pieces as decoded from the beginning."""
    generation = request.generation(generator)
    pieces: list[list[Piece]] = [[] for _ in generation.choices]
    for piece in request.known(generation):
        pieces[piece.index].append(piece)
    return pieces


def test_polls_decode_each_token_once(generator, request_of, steps):
    request, decoded = request_of(), DecodedRequests()

    async def poll() -> list[list[Piece]]:
        return await decoded.pieces(request, request.generation(generator))

    async def play() -> None:
        for position in range(200):
            note(request, position % 2, 30 + position, num_cached=7 * (position < 2), last=position == 199)
            if position % 20 == 0:  # the first poll comes before the first token of the second choice
                assert await poll() == (await poll())
        before = len(steps)
        first, second = await asyncio.gather(poll(), poll())
        note(request, 0, 5)
        assert len(steps) - before == 200 - 181
        assert len(await poll()) == 2
        assert len(first[0]) == 100, "a response does not grow while it is built"
        assert first == second

    asyncio.run(play())
    assert steps == [*range(30, 230), 5]
    pieces = asyncio.run(poll())
    assert pieces == anew(request, generator)
    assert [of_choice[0].num_cached for of_choice in pieces] == [7, 7]


def test_the_oldest_answers_make_room(generator, request_of, monkeypatch, steps):
    monkeypatch.setattr(decoded_requests, "MOST_BYTES", 25 * (PIECE_BYTES + 20))
    requests, decoded = [request_of(name) for name in "abc"], DecodedRequests()
    for request in requests:
        for token in range(30, 40):
            note(request, 0, token)

    def num_decoded(request: ResumableRequest) -> int:
        before = len(steps)
        asyncio.run(decoded.pieces(request, request.generation(generator)))
        return len(steps) - before

    a, b, c = requests
    assert [num_decoded(request) for request in (a, b, a, b, a, c, a, b)] == [10, 10, 0, 0, 0, 10, 0, 10]
    for token in range(40, 100):
        note(a, 0, token)
    assert [num_decoded(request) for request in (a, a)] == [60, 0], "the last answer stays, of whatever length"
    decoded.forget(a)
    assert num_decoded(a) == 70


def test_a_tokenizer_that_fails_ends_all_polls(generator, request_of, monkeypatch):
    request, decoded = request_of(), DecodedRequests()
    for token in range(30, 130):
        note(request, 0, token)
    step = IncrementalDecoder.step

    def failing(decoder: IncrementalDecoder, token: int, last: bool, stops: bool = False) -> str:
        if token == 120:
            raise RequestError("the model's tokenizer fails")
        return step(decoder, token, last, stops)

    monkeypatch.setattr(IncrementalDecoder, "step", failing)

    async def play() -> list[object]:
        polls = [decoded.pieces(request, request.generation(generator)) for _ in range(3)]
        return [
            *await asyncio.gather(*polls[:2], return_exceptions=True),
            *await asyncio.gather(polls[2], return_exceptions=True),
        ]

    assert [str(error) for error in asyncio.run(play())] == ["the model's tokenizer fails"] * 3
