"""Many choices of one request: all are accepted or none, a few at a time."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
from orca_contract.state import EngineState
from orca_master.bodies.openai_requests import CompletionRequest
from orca_master.endpoint.admin import create_probes
from orca_master.endpoint.application import create_app
from orca_master.endpoint.choice_run import PIECE_BYTES, PIECES_TOGETHER, SUBMITTED_AT_ONCE
from orca_master.endpoint.config import EndpointConfig
from orca_master.endpoint.endpoint import Endpoint
from orca_master.endpoint.generation import Generation, Generator
from orca_master.endpoint.request_deadline import TimeLimit
from orca_master.endpoint.served_models import ServedModels
from orca_master.engine.messages import Choices, Output
from orca_master.errors import EngineUnavailableError, QueueFullError, RequestError, RequestTimeoutError
from orca_master.scheduling.request import FinishReason
from orca_master.text.chat_template import ChatTemplate
from orca_master.text.detokenizer import IncrementalDecoder
from orca_master.text.tokenizer import TextCodec
from orca_protos import engine_pb2 as pb
from support.queue_client import DEPTH, Queue


def generator_of(engine: Queue, tmp_path, max_unread: int = 1 << 20) -> Generator:
    return Generator(engine, TextCodec(tmp_path), ServedModels(("m",), (), engine), max_unread)


def prepare(
    engine: Queue,
    tmp_path,
    num_prompts: int,
    n: int,
    max_tokens: int = 4,
    timeout: float | None = None,
    max_unread: int = 1 << 20,
):
    body = CompletionRequest(prompt=[[1, 2]] * num_prompts, n=n)
    generator = generator_of(engine, tmp_path, max_unread)
    limit = TimeLimit(time.monotonic(), timeout)
    return generator, generator.prepare("test", body, [[1, 2]] * num_prompts, max_tokens, None, limit)


async def collect(generator: Generator, generation: Generation) -> list[int]:
    return [piece.index async for pieces in generator.pieces(generation) for piece in pieces]


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0)


def test_more_choices_than_can_ever_wait(tmp_path):
    for num_prompts, n, field in ((1024, 128, "n"), (DEPTH + 1, 1, "prompt"), (3, 86, "n")):
        with pytest.raises(RequestError, match=rf"at most {DEPTH} can wait \(--max-queue-depth\)") as refused:
            prepare(Queue(), tmp_path, num_prompts, n)
        assert refused.value.field == field
    with pytest.raises(RequestError, match="at most 100000 can wait"):
        prepare(Queue(), tmp_path, 10, 10, max_tokens=1000)


def test_more_choices_than_can_wait_now(tmp_path):
    with pytest.raises(QueueFullError, match="250 requests are waiting"):
        prepare(Queue(waiting=250), tmp_path, 1, 7)
    prepare(Queue(waiting=250), tmp_path, 1, 6)
    prepare(Queue(waiting=DEPTH), tmp_path, 1, 1)  # the engine decides about a single one


def test_many_choices_come_a_few_at_a_time_and_share_their_prompt(tmp_path):
    async def run() -> None:
        engine = Queue()
        generator, generation = prepare(engine, tmp_path, 8, 32)
        collecting = asyncio.create_task(collect(generator, generation))
        await until(lambda: len(engine.accepted) == DEPTH)
        assert max(engine.bursts) <= SUBMITTED_AT_ONCE
        assert engine.bursts[0] == 1, "the first choice decides about all"
        assert len({id(submission.prompt) for submission in engine.accepted.values()}) == 8
        assert [submission.sampling.choice for submission in engine.accepted.values()] == list(range(32)) * 8
        assert {submission.choices for submission in engine.accepted.values()} == {
            Choices(generation.request_id, DEPTH, DEPTH * (2 + 4))
        }
        engine.finish(DEPTH)
        assert sorted(await collecting) == list(range(DEPTH))
        assert len(engine.released) == DEPTH
        assert generator.activity.idle.is_set()

    asyncio.run(run())


def test_a_refusal_takes_all_choices_back(tmp_path):
    async def run() -> None:
        engine = Queue(room=100)
        generator, generation = prepare(engine, tmp_path, 4, 50)
        with pytest.raises(QueueFullError):
            await collect(generator, generation)
        assert not engine.receivers
        assert [engine.released[request_id] for request_id in engine.accepted] == ["abort"] * 100
        assert len(engine.released) <= 100 + SUBMITTED_AT_ONCE, "nothing is submitted behind a refusal"
        assert generator.activity.idle.is_set()

    asyncio.run(run())


@pytest.mark.parametrize("room", [5, 4])
def test_an_event_is_set_when_the_engine_has_accepted_all_choices(tmp_path, room):
    """Before any piece: nothing is generated here."""

    async def run() -> None:
        engine = Queue(room=room)
        generator, generation = prepare(engine, tmp_path, 1, 5)
        accepted = asyncio.Event()
        reading = asyncio.create_task(anext(generator.pieces(generation, accepted=accepted)))
        await until(lambda: accepted.is_set() or reading.done())
        assert accepted.is_set() == (room == 5)
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        assert not engine.receivers

    asyncio.run(run())


def test_behind_a_refused_first_choice_nothing_is_submitted(tmp_path):
    async def run() -> None:
        engine = Queue(room=0)
        generator, generation = prepare(engine, tmp_path, 4, 50)
        with pytest.raises(QueueFullError):
            await collect(generator, generation)
        assert list(engine.released) == [generation.choices[0].submission.request_id]
        assert not engine.receivers

    asyncio.run(run())


@pytest.mark.parametrize("seed", [None, 3])
def test_prompts_without_a_seed_have_random_numbers_of_their_own(tmp_path, seed):
    """As in requests of their own; choices of a prompt differ by their number, and an equal seed makes all equal."""
    generator = generator_of(Queue(), tmp_path)
    body = CompletionRequest(prompt=[[1, 2]] * 3, n=2, seed=seed)
    generation = generator.prepare("test", body, [[1, 2]] * 3, 4, None)
    numbers = [(entry.seed, entry.choice) for entry in (choice.submission.sampling for choice in generation.choices)]
    assert len(set(numbers)) == (2 if seed else 6)
    assert [choice for _, choice in numbers] == [0, 1] * 3
    again = generator.generation(
        "again", 0, body, [[1, 2]] * 3, 4, None, numbers[0][0], None, "", 0, 0.0
    )  # as after a restart, from the journal
    assert [choice.submission.sampling.seed for choice in again.choices] == [number for number, _ in numbers]


@pytest.mark.parametrize(("temperature", "used"), [(2.0**-149, 0), (9e-6, 0), (2e-5, 2e-5), (0, 0)])
def test_a_temperature_that_logits_cannot_be_divided_by_is_greedy(tmp_path, temperature, used):
    body = CompletionRequest(prompt=[1, 2], temperature=temperature)
    generation = generator_of(Queue(), tmp_path).prepare("test", body, [[1, 2]], 4, None)
    assert generation.choices[0].submission.sampling.temperature == used


def test_a_single_choice_has_no_group(tmp_path):
    _, generation = prepare(Queue(), tmp_path, 1, 1)
    assert generation.choices[0].submission.choices is None


def test_a_client_that_leaves_an_error_and_a_timeout_cancel_what_runs(tmp_path):
    async def run() -> None:
        engine = Queue()
        generator, generation = prepare(engine, tmp_path, 1, 3)
        leaving = asyncio.create_task(collect(generator, generation))
        await until(lambda: len(engine.receivers) == 3)
        engine.finish(1)
        await until(lambda: len(engine.receivers) == 2)
        leaving.cancel()
        await asyncio.gather(leaving, return_exceptions=True)
        assert (len(engine.receivers), list(engine.released.values())) == (0, ["stop", "abort", "abort"])

        failing = asyncio.create_task(collect(generator, generation))
        await until(lambda: len(engine.receivers) == 3)
        engine.finish(1, token=None, finish_reason=FinishReason.ERROR, error="lost")
        with pytest.raises(EngineUnavailableError, match="lost"):
            await failing
        assert not engine.receivers

        generator, generation = prepare(engine, tmp_path, 1, 3, timeout=0.05)
        with pytest.raises(RequestTimeoutError):
            await collect(generator, generation)
        assert not engine.receivers

    asyncio.run(run())


@pytest.mark.parametrize("end", ["length", "error", "timeout"])
def test_a_reader_gets_together_what_arrived_meanwhile_and_then_the_end(tmp_path, end):
    async def run() -> None:
        engine = Queue()
        generator, generation = prepare(engine, tmp_path, 1, 1, timeout=0.2 if end == "timeout" else None)
        pieces = generator.pieces(generation)
        first = asyncio.create_task(anext(pieces))
        await until(lambda: len(engine.receivers) == 1)
        engine.finish(1, finish_reason=None)
        assert len(await first) == 1
        for _ in range(PIECES_TOGETHER + 2):
            engine.finish(1, finish_reason=None)
        if end == "length":
            engine.finish(1)
        elif end == "error":
            engine.finish(1, token=None, finish_reason=FinishReason.ERROR, error="lost")
        else:
            await until(lambda: not engine.receivers)
        assert [len(await anext(pieces)) for _ in range(2)] == [PIECES_TOGETHER, 2 + (end == "length")]
        expected = {"length": StopAsyncIteration, "error": EngineUnavailableError, "timeout": RequestTimeoutError}[end]
        with pytest.raises(expected):
            await anext(pieces)
        assert list(engine.released.values()) == [{"length": "stop"}.get(end, "abort")]

    asyncio.run(run())


def test_a_client_that_does_not_read_is_given_up_at_once(tmp_path):
    async def run() -> None:
        engine = Queue()
        generator, generation = prepare(engine, tmp_path, 1, 2, max_unread=1000)
        pieces = generator.pieces(generation)
        first = asyncio.create_task(anext(pieces))
        await until(lambda: len(engine.receivers) == 2)
        engine.finish(1, finish_reason=None)
        assert [piece.token for piece in await first] == [5]
        for _ in range(4):
            engine.finish(1, finish_reason=None)
        assert list(engine.released.values()) == ["abort", "abort"]
        with pytest.raises(RequestTimeoutError, match="does not read: more than 1000 bytes"):
            async for _ in pieces:
                pass

    asyncio.run(run())


@pytest.mark.parametrize(("text", "status"), [("0.05", 408), ("5e-2", 408), ("0", 400), ("-1", 400), ("nan", 400),
                                              ("inf", 400), ("soon", 400), ("86401", 400)])  # fmt: skip
def test_a_client_bounds_its_request(tmp_path, text, status):
    async def run() -> None:
        endpoint = Endpoint(EndpointConfig(("m",)), Queue(), TextCodec(tmp_path), ChatTemplate(tmp_path))
        transport = httpx.ASGITransport(create_app(endpoint))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            headers = {"X-Request-Deadline": text}
            answer = await client.post("/v1/completions", json={"prompt": [1, 2], "max_tokens": 5}, headers=headers)
        assert answer.status_code == status
        error = answer.json()["error"]
        assert answer.headers.get("x-should-retry") == ("false" if status == 408 else None)
        assert status == 408 or (error["param"] == "X-Request-Deadline" and repr(text) in error["message"])

    asyncio.run(run())


@pytest.mark.parametrize(("body", "expected_wait", "seconds"), [
    ({"prompt": [1, 2]}, 0.0, "1"), ({"prompt": [1, 2]}, 41.2, "42"), ({"prompt": [[1, 2], [3]], "n": 3}, 41.2, "42"),
])  # fmt: skip
def test_a_refusal_says_when_the_waiting_requests_will_have_begun(tmp_path, body, expected_wait, seconds):
    """The same for one choice, refused by the engine, and for more choices than there are places."""

    async def run() -> None:
        engine = Queue(room=0, waiting=DEPTH, expected_wait=expected_wait)
        endpoint = Endpoint(EndpointConfig(("m",)), engine, TextCodec(tmp_path), ChatTemplate(tmp_path))
        transport = httpx.ASGITransport(create_app(endpoint))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            answer = await client.post("/v1/completions", json={**body, "max_tokens": 5})
        assert (answer.status_code, answer.headers["retry-after"]) == (429, seconds)
        assert answer.json()["error"]["code"] == "queue_full"
        assert engine.receivers == {}

    asyncio.run(run())


def test_a_request_behind_a_queue_that_is_too_long_is_refused_before_its_body_is_checked(tmp_path):
    """Whatever the body is; requests that generate nothing are answered."""

    async def run() -> None:
        engine = Queue(expected_wait=41.2, max_expected_wait=41.0)
        endpoint = Endpoint(EndpointConfig(("m",)), engine, TextCodec(tmp_path), ChatTemplate(tmp_path))
        transport = httpx.ASGITransport(create_app(endpoint))
        json_type = {"Content-Type": "application/json"}
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost", headers=json_type) as client:
            for path in ("/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/score", "/rerank"):
                answer = await client.post(path, content=b"{")
                assert (answer.status_code, answer.headers["retry-after"]) == (429, "42")
                assert "expected to wait 41.2 s, the limit is 41 s" in answer.json()["error"]["message"]
            too_long = b"x" * (endpoint.config.http.max_body_bytes + 1)

            async def sent_in_pieces() -> AsyncIterator[bytes]:
                yield too_long

            assert (await client.post("/v1/completions", content=too_long)).status_code == 413
            assert (await client.post("/v1/completions", content=sent_in_pieces())).status_code == 413
            assert (await client.post("/tokenize", content=b"{")).status_code == 400
            assert (await client.get("/v1/completions")).status_code == 405
            engine.waits = 40.0, 41.0
            assert (await client.post("/v1/completions", content=b"{")).status_code == 400
            engine.waits, engine.draining = (41.2, 41.0), True
            assert (await client.post("/v1/completions", json={"prompt": [1]})).status_code == 503

    asyncio.run(run())


def test_a_paused_engine_is_ready_and_refuses_requests_with_its_reason(tmp_path):
    """Otherwise a Service would have no address, and clients would get no answer."""

    async def run() -> None:
        engine = Queue()
        engine.state, engine.failure = EngineState.PAUSED, "spec.replicas is 0"
        endpoint = Endpoint(EndpointConfig(("m",)), engine, TextCodec(tmp_path), ChatTemplate(tmp_path))
        transport = httpx.ASGITransport(create_app(endpoint))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            assert (await client.get("/readyz")).status_code == 200
            answer = await client.post("/v1/completions", json={"prompt": [1, 2], "max_tokens": 5})
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
            assert answer.json()["error"]["message"] == "paused: spec.replicas is 0"
            engine.draining = True
            assert (await client.get("/readyz")).status_code == 503
        joined = True
        probes = httpx.ASGITransport(create_probes(cast(Any, engine), lambda: joined))
        async with httpx.AsyncClient(transport=probes, base_url="http://localhost") as client:
            assert (await client.get("/readyz")).status_code == 503
            engine.draining = False
            assert (await client.get("/readyz")).status_code == 200
            joined = False
            answer = await client.get("/readyz")
            assert (answer.status_code, answer.text) == (503, "no API process is connected\n")

    asyncio.run(run())


def test_the_timeout_begins_at_the_arrival_of_the_request(tmp_path):
    """The error names the whole timeout, also if the texts of the request took most of it."""

    async def run() -> None:
        engine = Queue()
        generator = generator_of(engine, tmp_path)
        arrived = time.monotonic() - 1000
        limit = TimeLimit(arrived, 1000.05)
        generation = generator.prepare("test", CompletionRequest(prompt=[1, 2]), [[1, 2]], 4, None, limit)
        assert generation.deadline is not None
        assert generation.deadline < time.time() + 1
        assert generation.choices[0].submission.arrived == arrived
        async with asyncio.timeout(20):
            with pytest.raises(RequestTimeoutError, match=r"not finished within 1000\.05 s"):
                await collect(generator, generation)

    asyncio.run(run())


TOKEN: dict[str, Any] = {"finish_reason": None}
"""An output that continues an answer."""


def answer_to(folder: Path, stream: bool, *outputs: dict[str, Any]) -> tuple[httpx.Response, dict[str, object]]:
    """Return the response of a request with these outputs of the engine, and the error in its body or stream."""

    async def run() -> httpx.Response:
        engine = Queue()
        endpoint = Endpoint(EndpointConfig(("m",)), engine, TextCodec(folder), ChatTemplate(folder))
        transport = httpx.ASGITransport(create_app(endpoint))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            body = {"prompt": [1, 2], "max_tokens": 5, "stream": stream}
            asking = asyncio.create_task(client.post("/v1/completions", json=body))
            while not engine.receivers:
                await asyncio.sleep(0)
            for output in outputs:
                engine.finish(1, **output)
            return await asking

    answer = asyncio.run(run())
    return answer, json.loads(answer.text.split("data: ")[-1])["error"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_on_which_workers_failed_is_answered_with_500_and_no_advice_to_retry(tmp_path, stream):
    failure = {"token": None, "finish_reason": FinishReason.FAULT, "error": "request x: alone"}
    # After the first token the status of a stream is 200.
    answer, error = answer_to(tmp_path, stream, *([TOKEN] if stream else []), failure)
    if stream:
        assert error["code"] == "engine_error"
    else:
        assert (answer.status_code, answer.headers["x-should-retry"]) == (500, "false")
        expected = {"message": "request x: alone", "type": "server_error", "param": None, "code": "engine_error"}
        assert error == expected


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_its_own_constraints_end_is_the_clients_error(tmp_path, stream):
    failure = {"token": None, "finish_reason": FinishReason.CONSTRAINT, "error": "no token is allowed"}
    answer, error = answer_to(tmp_path, stream, TOKEN, failure)
    assert answer.status_code == (200 if stream else 400)
    assert error["message"] == "no token is allowed"
    assert (error["type"], error["code"]) == ("invalid_request_error", "constraint_error")


@pytest.mark.parametrize("stream", [False, True])
def test_a_token_without_a_text_is_no_error_of_the_request(tmp_path, monkeypatch, stream):
    def fail(*_: Any, **__: Any) -> str:
        raise RequestError("the model's tokenizer fails on a generated token: x")

    monkeypatch.setattr(IncrementalDecoder, "step", fail)
    answer, error = answer_to(tmp_path, stream, TOKEN)
    assert (answer.status_code, error["code"]) == (500, "engine_error")


def part(*ranks: int) -> pb.PromptLogprobs:
    return pb.PromptLogprobs(logprob=[-0.5] * len(ranks), rank=ranks)


def scored(tmp_path, **fields: Any) -> tuple[Queue, Generator, Generation]:
    """Return a generation of two prompts of three tokens with two choices each, and log probabilities of prompts."""
    engine = Queue()
    body = CompletionRequest.model_validate({"prompt": [[1, 2, 3]] * 2, "n": 2, **fields})
    generator = generator_of(engine, tmp_path)
    return engine, generator, generator.prepare("test", body, [[1, 2, 3]] * 2, body.max_tokens, body.logprobs)


@pytest.mark.parametrize(
    ("fields", "count"),
    [
        ({}, None),
        ({"prompt_logprobs": 3}, 3),
        ({"echo": True}, None),
        ({"logprobs": 5}, None),
        ({"echo": True, "logprobs": 0}, 0),
        ({"echo": True, "logprobs": 2, "prompt_logprobs": 1}, 2),
    ],
)
def test_the_first_choice_of_each_prompt_asks_for_its_log_probabilities(tmp_path, fields, count):
    _, _, generation = scored(tmp_path, **fields)
    found = [choice.submission.sampling.prompt_logprobs for choice in generation.choices]
    assert found == [count, None, count, None]
    assert [choice.first_of_prompt for choice in generation.choices] == [0, 0, 2, 2]


def test_too_many_log_probabilities_of_prompts_are_refused_by_name(tmp_path):
    for fields, field in (({"echo": True, "logprobs": 20}, "logprobs"), ({"prompt_logprobs": 20}, "prompt_logprobs")):
        body = CompletionRequest.model_validate({"prompt": [1], **fields})
        generator = generator_of(Queue(), tmp_path)
        with pytest.raises(RequestError, match="at most 1048576 are supported") as refused:
            generator.prepare("test", body, [[1] * 49_933], 1, body.logprobs)
        assert refused.value.field == field
        generator.prepare("test", body, [[1] * 49_932], 1, body.logprobs)


def test_log_probabilities_that_are_returned_in_both_forms_count_twice(tmp_path):
    body = CompletionRequest(prompt=[1], echo=True, logprobs=20, prompt_logprobs=20)
    generator = generator_of(Queue(), tmp_path)
    with pytest.raises(RequestError, match="24967 tokens of prompts with 42 log probabilities each"):
        generator.prepare("test", body, [[1] * 24_967], 1, body.logprobs)
    generator.prepare("test", body, [[1] * 24_966], 1, body.logprobs)


def test_pieces_of_a_prompt_wait_for_its_log_probabilities_which_come_once(tmp_path):
    """The second choice is faster; the other prompt does not wait; the parts are joined."""

    async def run() -> None:
        engine, generator, generation = scored(tmp_path, prompt_logprobs=0)
        found = []

        async def read() -> None:
            async for pieces in generator.pieces(generation):
                found.extend(pieces)

        reading = asyncio.create_task(read())
        await until(lambda: len(engine.receivers) == 4)
        names = [choice.submission.request_id for choice in generation.choices]
        receive = dict(engine.receivers)

        def tell(index: int, token: int | None, prompt_logprobs: pb.PromptLogprobs | None = None, ends: bool = False):
            reason = FinishReason.LENGTH if ends else None
            receive[names[index]](Output(names[index], token, reason, prompt_logprobs=prompt_logprobs))

        tell(1, 10)
        tell(0, None, part(7))
        tell(1, 11, ends=True)
        tell(2, 20, part(3, 4))
        tell(3, 30, ends=True)
        await until(lambda: len(found) == 2)
        assert [(piece.index, piece.token) for piece in found] == [(2, 20), (3, 30)]
        tell(0, 40, part(8))
        tell(0, 41, ends=True)
        tell(2, 21, ends=True)
        await reading
        assert [(piece.index, piece.token) for piece in found[2:]] == [(0, 40), (1, 10), (1, 11), (0, 41), (2, 21)]
        assert [piece.prompt_logprobs for piece in found if piece.prompt_logprobs is not None] == [
            part(3, 4),
            part(7, 8),
        ]

    asyncio.run(run())


def test_an_error_ends_a_choice_that_waits_for_its_prompt(tmp_path):
    async def run() -> None:
        engine, generator, generation = scored(tmp_path, prompt_logprobs=0)
        collecting = asyncio.create_task(collect(generator, generation))
        await until(lambda: len(engine.receivers) == 4)
        name = generation.choices[1].submission.request_id
        engine.receivers[name](Output(name, None, FinishReason.ERROR, "lost"))
        with pytest.raises(EngineUnavailableError, match="lost"):
            await collecting
        assert not engine.receivers

    asyncio.run(run())


def test_without_a_generated_token_the_engine_generates_one(tmp_path):
    _, _, generation = scored(tmp_path, echo=True, max_tokens=0)
    assert generation.max_tokens == 0
    assert {choice.submission.max_gen_tokens for choice in generation.choices} == {1}
    assert generation.choices[0].submission.choices == Choices(generation.request_id, 4, 4 * (3 + 1))


def test_pieces_that_waited_for_their_prompt_do_not_count_as_unread(tmp_path):
    """Twice as many as may be unread."""

    async def run() -> None:
        engine = Queue()
        body = CompletionRequest(prompt=[1, 2, 3], n=2, prompt_logprobs=0)
        generator = generator_of(engine, tmp_path, max_unread=100 * PIECE_BYTES)
        generation = generator.prepare("test", body, [[1, 2, 3]], 300, 1)
        collecting = asyncio.create_task(collect(generator, generation))
        await until(lambda: len(engine.receivers) == 2)
        first, second = (choice.submission.request_id for choice in generation.choices)
        receive = dict(engine.receivers)
        for token in range(200):
            logprobs = pb.Logprobs(sampled=-1.0, token=[4], logprob=[-1.0])
            receive[second](Output(second, token, FinishReason.LENGTH if token == 199 else None, logprobs=logprobs))
        receive[first](Output(first, 5, FinishReason.LENGTH, prompt_logprobs=part(1, 2)))
        assert await collecting == [0, *[1] * 200]

    asyncio.run(run())


@pytest.mark.parametrize(("fields", "logprobs"), [({}, 0), ({"logprobs": 3}, 3), ({"n": 4}, None)])
def test_best_of_generates_more_choices_and_their_log_probabilities(tmp_path, fields, logprobs):
    body = CompletionRequest.model_validate({"prompt": [[1], [2]], "best_of": 4, "n": 2, "echo": True, **fields})
    generator = generator_of(Queue(), tmp_path)
    generation = generator.prepare("test", body, [[1], [2]], 5, body.logprobs)
    assert (generation.n, generation.choices_per_prompt) == (body.n, 4)
    assert [choice.submission.sampling.choice for choice in generation.choices] == [0, 1, 2, 3] * 2
    assert {choice.submission.sampling.logprobs for choice in generation.choices} == {logprobs}
    assert generation.choices[0].submission.choices == Choices(generation.request_id, 8, 8 * (1 + 5))


def test_more_choices_to_choose_from_than_can_ever_wait_are_refused_by_name(tmp_path):
    body = CompletionRequest(prompt=[[1]] * 3, best_of=86)
    with pytest.raises(RequestError, match=f"best_of = 86 are 258 choices, at most {DEPTH} can wait") as refused:
        generator_of(Queue(), tmp_path).prepare("test", body, [[1]] * 3, 1, None)
    assert refused.value.field == "best_of"
