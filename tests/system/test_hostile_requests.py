"""A request that cannot be served is refused alone: one clear answer, and the next request is served."""

from __future__ import annotations

import asyncio
import json

import httpx
import pytest
from orca_master.engine import dispatcher
from orca_master.engine.config import EngineConfig
from orca_master.errors import EngineUnavailableError, RequestError
from orca_master.scheduling.request import FinishReason
from support.checkpoints import with_tokenizer
from support.engines import engine, engine_over, topology
from support.served import serve

pytestmark = pytest.mark.long

NAME = "gpt2-head64-tied"
SOUND = {"prompt": "a", "max_tokens": 2, "temperature": 0}


def post(url: str, body: dict) -> httpx.Response:
    """Send a body as ASCII JSON, in which a lone surrogate is an escape."""
    return httpx.post(url, content=json.dumps(body), headers={"Content-Type": "application/json"}, timeout=60)


@pytest.fixture(scope="module")
def url(checkpoint, tmp_path_factory):
    with serve(with_tokenizer(checkpoint(NAME), tmp_path_factory.mktemp("hostile")), "-pp", "2") as served:
        yield served.url


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"prompt": [1], "min_tokens": 4294967296}, "min_tokens"),
        ({"prompt": [1], "min_tokens": 17}, "min_tokens"),
        ({"prompt": [1], "priority": 1}, "priority"),
        ({"prompt": [1], "priority": 2**31}, "priority"),
        ({"prompt": [1], "max_tokens": 2**31}, "max_tokens"),
        ({"prompt": [1], "max_tokens": 10**40}, "max_tokens"),
        ({"prompt": [2**32]}, "prompt"),
        ({"prompt": [1], "seed": 2**64}, "seed"),
        ({"prompt": [1], "top_k": 2**32}, "top_k"),
        ({"prompt": [1], "logit_bias": {"٣": 1}}, "logit_bias"),
        ({"prompt": [1], "logit_bias": {"9999999999": 1}}, "logit_bias"),
        ({"prompt": [1], "stop_token_ids": [-1]}, "stop_token_ids"),
        ({"prompt": "a\ud800b"}, "prompt"),
        ({"prompt": ["a", "\udfff"]}, "prompt"),
        ({"prompt": [1], "\ud800": 1}, None),
        ({"prompt": ["a"] * 1024, "n": 128}, "n"),
        ({"prompt": [[1]] * 1024, "n": 5, "stream": True}, "n"),
    ],
    ids=lambda value: json.dumps(value)[:60] if isinstance(value, dict) else "",
)
def test_a_completion_that_cannot_be_served(url, body, field):
    refused = post(f"{url}/v1/completions", body)
    assert refused.status_code == 400, refused.text
    error = refused.json()["error"]
    assert field is None or field == error["param"], error
    assert post(f"{url}/v1/completions", SOUND).status_code == 200


@pytest.mark.parametrize(
    "body",
    [
        {"messages": [{"role": "user", "content": "\ud800"}]},
        {"messages": [{"role": "user", "content": "a"}], "min_tokens": 2**32, "max_tokens": 1},
        {"messages": [{"role": "user", "content": "a"}], "min_tokens": 2, "max_tokens": 1},
    ],
    ids=["surrogate", "min_tokens out of range", "min_tokens above max_tokens"],
)
def test_a_chat_that_cannot_be_served(url, body):
    refused = post(f"{url}/v1/chat/completions", body)
    assert refused.status_code == 400, refused.text
    assert post(f"{url}/v1/completions", SOUND).status_code == 200


@pytest.mark.parametrize(
    ("route", "body", "status"),
    [
        ("v1/completions", {"prompt": [1], "stop": "\ud800"}, 200),
        ("v1/completions", {"prompt": [1], "user": "\ud800"}, 200),
        ("v1/completions", {"prompt": [1], "model": "\ud800"}, 404),
        ("v1/chat/completions", {"messages": [{"role": "user", "content": "a", "name": "\ud800"}]}, 200),
        ("detokenize", {"tokens": [1], "model": "\ud800"}, 404),
    ],
    ids=["stop", "user", "model", "name", "detokenize"],
)
def test_a_lone_surrogate_that_no_prompt_contains(url, route, body, status):
    assert post(f"{url}/{route}", {"max_tokens": 2, **body} if route.startswith("v1") else body).status_code == status


@pytest.mark.parametrize(
    ("route", "body", "field"),
    [
        ("completions", {"prompt": [-1] * 100_000}, "prompt"),
        ("completions", {"prompt": "a", "logit_bias": {f"x{number}": "x" for number in range(100_000)}}, "logit_bias"),
        ("chat/completions", {"messages": [{"role": "robot"}] * 100_000}, "messages"),
    ],
    ids=["token ids", "logit_bias", "messages"],
)
def test_100_000_errors_are_one_error(url, route, body, field):
    """tests/master/test_bodies.py counts the errors that are collected."""
    refused = post(f"{url}/v1/{route}", body)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, field)
    assert len(refused.content) < 2000
    assert post(f"{url}/v1/completions", SOUND).status_code == 200


@pytest.mark.parametrize(
    "body",
    [
        b'{"prompt": [' + b"[]," * (1 << 18) + b"[]]}",
        b'{"prompt": "' + b"a" * (1 << 20) + b'"}',
        b'{"prompt": ' + b"[" * (1 << 20),
        b'{"logit_bias": {' + b",".join(b'"%d": 1' % number for number in range(1 << 16)) + b"}}",
    ],
    ids=["empty arrays", "text", "depth", "keys"],
)
def test_a_large_body_is_refused_by_another_process(url, body):
    """tests/master/test_body_checker.py has its bounds; benchmarks/big_requests.py measures what neighbours notice."""
    refused = httpx.post(
        f"{url}/v1/completions", content=body, headers={"Content-Type": "application/json"}, timeout=60
    )
    assert refused.status_code == 400, refused.text
    assert post(f"{url}/v1/completions", {**SOUND, "user": None, "prompt": "a" * 9, "x": None}).status_code == 200


def test_a_large_body_that_is_sound_is_served(url):
    padded = json.dumps({**SOUND, "return_token_ids": True}).encode() + b" " * (1 << 20)
    answer = httpx.post(
        f"{url}/v1/completions", content=padded, headers={"Content-Type": "application/json"}, timeout=60
    )
    assert answer.json()["choices"][0]["text"] == post(f"{url}/v1/completions", SOUND).json()["choices"][0]["text"]
    ids = b'{"prompt": [[1, 2, 3]], "max_tokens": 2, "temperature": 0, "return_token_ids": true}'
    small, large = (
        httpx.post(f"{url}/v1/completions", content=ids + b" " * size, headers={"Content-Type": "application/json"})
        for size in (0, 1 << 20)
    )
    assert small.json()["choices"] == large.json()["choices"]


@pytest.mark.parametrize(
    ("route", "body"),
    [
        ("tokenize", {"prompt": "\ud800"}),
        ("tokenize", {"messages": [{"role": "user", "content": "\ud800"}]}),
        ("detokenize", {"tokens": [2**31]}),
    ],
    ids=["prompt", "messages", "token"],
)
def test_text_routes(url, route, body):
    refused = post(f"{url}/{route}", body)
    assert refused.status_code == 400, refused.text


def test_a_number_that_the_protocol_cannot_carry_is_refused_by_the_engine_too(checkpoint, worker_pool):
    """Whatever the endpoint lets through: the pipeline and the requests beside it go on."""

    async def run() -> None:
        spec = topology(checkpoint(NAME), worker_pool.addresses(2))
        async with engine_over(spec, EngineConfig(speculative_tokens=4)) as harness:
            harness.submit("before", (1, 2), 4)
            for sampling in ({"min_tokens": 2**32}, {"seed": -1}, {"logit_bias": ((2**32, 1.0),)}, {"top_k": -1}):
                with pytest.raises(RequestError, match="out of range"):
                    harness.submit("hostile", (1,), 4, **sampling)
            with pytest.raises(RequestError, match="prompt: token id 4294967296 is not between 0 and"):
                harness.submit("hostile", (2**32,), 4)
            harness.submit("after", (3,), 4)
            tokens = await harness.collect(2)
            assert {name: len(found) for name, found in tokens.items()} == {"before": 4, "after": 4}
            harness.assert_nothing_held()

    asyncio.run(run())


@pytest.mark.parametrize("part", ["scheduler.select", "scheduler.dispatch", "workers.send"])
def test_an_exception_in_the_engines_loop_ends_requests_with_an_error(checkpoint, monkeypatch, caplog, part):
    """Nobody waits for ever, the log has the traceback, and later requests hear why."""

    async def run() -> None:
        async with engine(checkpoint(NAME), 1) as harness:
            owner, name = part.split(".")
            (serving,) = harness.engine._pipelines.serving.values()
            target = {"scheduler": harness.engine.scheduler, "workers": serving.workers}[owner]

            def fails(*_: object) -> None:
                raise ZeroDivisionError("the test's")

            monkeypatch.setattr(target, name, fails)
            monkeypatch.setattr(dispatcher, "look_ahead", fails)  # nothing is tried on a pipeline that is given up
            harness.submit("first", (1, 2), 4)
            async with asyncio.timeout(60):
                output = await harness.outputs.get()
            assert (output.request_id, output.finish_reason) == ("first", FinishReason.ERROR)
            assert "internal error: ZeroDivisionError" in (output.error or "")
            with pytest.raises(EngineUnavailableError, match="internal error"):
                harness.submit("second", (1, 2), 4)

    asyncio.run(run())
    assert "Traceback" in caplog.text
    assert "ZeroDivisionError: the test's" in caplog.text
