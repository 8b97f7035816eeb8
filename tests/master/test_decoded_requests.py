"""A client that polls an answer: each token is decoded once, within a bound of memory, and the answer is the same."""

from __future__ import annotations

import asyncio
import tracemalloc
from array import array
from collections.abc import Sequence
from pathlib import Path

import pytest
from orca_master.endpoint import decoded_requests
from orca_master.endpoint.choice_run import PIECE_BYTES, PIECES_TOGETHER, Piece
from orca_master.endpoint.decoded_requests import CHOICE_BYTES, DecodedRequests
from orca_master.endpoint.generation import Generator
from orca_master.endpoint.resumable_request import ResumableRequest
from orca_master.endpoint.served_models import ServedModels
from orca_master.engine.messages import Output
from orca_master.errors import EngineError, RequestError
from orca_master.journal.journal import Journal
from orca_master.journal.records import Accepted
from orca_master.scheduling.request import FinishReason
from orca_master.text.detokenizer import IncrementalDecoder
from orca_master.text.tokenizer import TextCodec
from orca_protos import engine_pb2 as pb
from support.idle_engine import Idle

DEMO = Path(__file__).parents[2] / "examples" / "demo-model"


@pytest.fixture
def generator() -> Generator:
    engine = Idle()
    return Generator(engine, TextCodec(DEMO), ServedModels(("m",), (), engine), 1 << 20)


@pytest.fixture
def request_of(tmp_path):
    """Return a function that makes a request of two choices by default, whose answers end with a stop string."""
    journals: list[Journal] = []

    def make(name: str = "a", num_choices: int = 2, prompt: Sequence[int] = (1,)) -> ResumableRequest:
        journals.append(journal := Journal(tmp_path / name, "m"))
        body = {"n": num_choices, "stop": ["zz"]}
        accepted = Accepted(name, "completions", body, [array("I", prompt)], 900, None, 1, 1, "")
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
    monkeypatch.setattr(decoded_requests, "MOST_BYTES", 25 * (PIECE_BYTES + 20) + 5 * CHOICE_BYTES)
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


def test_a_poll_returns_only_what_the_journal_has(generator, request_of, tmp_path):
    """A master that dies after the response must not generate other tokens for those that the client has."""
    request, decoded = request_of(), DecodedRequests()

    async def play() -> list[list[Piece]]:
        for _ in range(2 * PIECES_TOGETHER):
            note(request, 0, 40)
        poll = asyncio.create_task(decoded.pieces(request, request.generation(generator)))
        await asyncio.sleep(0)
        note(request, 0, 40)
        return await poll

    (pieces, _) = asyncio.run(play())
    (path,) = (tmp_path / "a").glob("*.journal")
    assert len(pieces) == path.read_bytes().count(b",0,40]") == 2 * PIECES_TOGETHER


def test_all_memory_of_an_answer_counts(generator, request_of, monkeypatch, steps):
    """That of detokenizers and of the log probabilities of prompts, too: clients choose their sizes."""
    monkeypatch.setattr(decoded_requests, "MOST_BYTES", 64 << 10)
    found = pb.PromptLogprobs(logprob=[-1.0] * 10_000)

    def num_kept(name: str, num_choices: int, of_prompt: pb.PromptLogprobs | None = None) -> int:
        """Return how many of 40 answers with a token are kept."""
        decoded, requests = DecodedRequests(), []
        for index in range(40):
            requests.append(request := request_of(f"{name}{index}", num_choices))
            request.note(0, Output("a", 40, None, prompt_logprobs=of_prompt))
            asyncio.run(decoded.pieces(request, request.generation(generator)))
        steps.clear()
        for request in reversed(requests):
            asyncio.run(decoded.pieces(request, request.generation(generator)))
        return 40 - len(steps)

    assert num_kept("a", 1) > 10
    assert num_kept("b", 64) == 1
    assert num_kept("c", 1, found) == 1


def test_log_probabilities_count_with_the_memory_that_protobuf_takes(generator, request_of, monkeypatch, steps):
    """A piece with those of one token takes 710 bytes (measured with upb), and two answers did not fit."""
    monkeypatch.setattr(decoded_requests, "MOST_BYTES", 2 * 100 * 710)
    requests, decoded = [request_of(name, 1) for name in "ab"], DecodedRequests()
    for request in requests:
        for _ in range(100):
            request.note(0, Output("a", 40, None, logprobs=pb.Logprobs(sampled=-1.0)))
    for request in (*requests, *requests):
        asyncio.run(decoded.pieces(request, request.generation(generator)))
    assert len(steps) == 400


def test_prompts_are_not_kept(generator, request_of):
    request, decoded = request_of("a", 1, [1] * 100_000), DecodedRequests()

    def poll() -> int:
        """Return the bytes that are in use afterwards."""
        asyncio.run(decoded.pieces(request, request.generation(generator)))
        decoded_bytes, _ = tracemalloc.get_traced_memory()
        return decoded_bytes

    poll()
    decoded.forget(request)
    tracemalloc.start()
    try:
        assert poll() < 100_000
    finally:
        tracemalloc.stop()


def test_the_error_of_a_tokenizer_keeps_nothing_of_earlier_polls(generator, request_of, monkeypatch):
    request, decoded = request_of(), DecodedRequests()
    note(request, 0, 40)

    def failing(decoder: IncrementalDecoder, token: int, last: bool, stops: bool = False) -> str:
        raise RequestError("the model's tokenizer fails")

    monkeypatch.setattr(IncrementalDecoder, "step", failing)
    lengths = []
    for _ in range(4):
        with pytest.raises(EngineError) as caught:
            asyncio.run(decoded.pieces(request, request.generation(generator)))
        lengths.append(len(caught.traceback))
    assert lengths[1] == lengths[3]
