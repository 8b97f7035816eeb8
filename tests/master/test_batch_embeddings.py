"""Lines of /v1/embeddings in a batch: their places, their class and their answers."""

from __future__ import annotations

import asyncio
import json
from array import array
from dataclasses import replace
from typing import Any

import openai
import pytest
from orca_master.batches.input_lines import BatchLine, InvalidLine
from orca_master.engine.config import EngineConfig
from orca_master.scheduling.request import ServiceClass
from support.answers import EMBEDDINGS
from support.batches import (
    GatedEngine,
    Server,
    created,
    ended,
    lines_of,
    play,
    read_input,
    request_line,
    servers,
    upload,
)
from support.fake_engine import Engine, topology
from support.fake_engine import play as play_engine
from support.scripted_engine import MODEL


def line(custom_id: str, **body: Any) -> str:
    return request_line(custom_id, EMBEDDINGS, body)


@pytest.fixture
def made(tmp_path) -> Server:
    return servers(tmp_path)(GatedEngine, concurrency=3)


def test_a_line_takes_a_place_for_each_text(made):
    """Three places: a line of two texts and one of one; a line of two waits, and one of four, which takes all."""

    async def scene(client: openai.AsyncOpenAI) -> None:
        engine = made.scripted.engine
        many = line("many", input=["a", "b", "c", "d"])
        text = line("two", input=["a", "b"]) + line("ids", input=[1, 2, 3, 4]) + line("wait", input=[[1], [2]]) + many
        batch = await created(client, await upload(client, text + line("none", input=[])), EMBEDDINGS)
        assert batch.endpoint == EMBEDDINGS
        await made.wait_for_places(3)
        await asyncio.sleep(0.05)
        prompts = [list(entry.prompt) for entry in engine.submissions]
        assert (len(prompts), [1, 2, 3, 4] in prompts, [1] in prompts) == (3, True, False)
        engine.gate.set()
        done = await ended(client, batch.id)
        assert (done.status, done.request_counts.completed, done.request_counts.failed) == ("completed", 4, 1)
        assert made.batches.runner.places.num_taken == 0
        assert {(entry.service_class, entry.pooling) for entry in engine.submissions} == {(ServiceClass.BATCH, "last")}
        assert {entry.choices for entry in engine.submissions} == {None}, "lines take no place of the queue"
        answers = {entry["custom_id"]: entry["response"] for entry in await lines_of(client, done.output_file_id)}
        assert {name: len(answer["body"]["data"]) for name, answer in answers.items()} == {
            "two": 2,
            "ids": 1,
            "wait": 2,
            "many": 4,
        }
        assert len({answer["request_id"] for answer in answers.values()}) == 4
        errors = {entry["custom_id"]: entry for entry in await lines_of(client, done.error_file_id)}
        assert errors["none"]["response"]["status_code"] == 400
        assert errors["none"]["response"]["body"]["error"]["param"] == "input"

    play(made, scene)


@pytest.mark.parametrize("is_cancelled", [False, True])
def test_the_texts_of_a_long_line_are_computed_a_few_at_a_time(made, is_cancelled):
    """As many as there are places; of a cancelled batch the engine has no others."""

    async def scene(client: openai.AsyncOpenAI) -> None:
        engine = made.scripted.engine
        texts = [[number] for number in range(1, 101)]
        batch = await created(client, await upload(client, line("a", input=texts)), EMBEDDINGS)
        while len(engine.submissions) < 3:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
        assert [list(entry.prompt) for entry in engine.submissions] == texts[:3]
        if is_cancelled:
            await client.batches.cancel(batch.id)
            assert (await ended(client, batch.id)).status == "cancelled"
            assert engine.released == ["abort"] * 3
        else:
            engine.gate.set()
            done = await ended(client, batch.id)
            assert (done.status, done.request_counts.completed) == ("completed", 1)
            [answer] = await lines_of(client, done.output_file_id)
            assert [entry["index"] for entry in answer["response"]["body"]["data"]] == list(range(100))
            assert [list(entry.prompt) for entry in engine.submissions] == texts
            assert len(engine.released) == 100
        assert made.batches.runner.places.num_taken == 0

    play(made, scene)


def test_an_answer_is_that_of_the_route(made):
    async def scene(client: openai.AsyncOpenAI) -> None:
        made.scripted.engine.gate.set()
        bodies = {"float": {"input": ["a", "b"]}, "base64": {"model": MODEL, "input": "a"}}
        text = "".join(line(name, encoding_format=name, **body) for name, body in bodies.items())
        batch = await created(client, await upload(client, text + line("other", model="x", input="a")), EMBEDDINGS)
        done = await ended(client, batch.id)
        answers = {entry["custom_id"]: entry["response"] for entry in await lines_of(client, done.output_file_id)}
        assert set(answers) == set(bodies)
        for name, body in bodies.items():
            direct = await client.post("/embeddings", body={"encoding_format": name} | body, cast_to=object)
            assert answers[name]["body"] == direct
        [refused] = await lines_of(client, done.error_file_id)
        assert (refused["custom_id"], refused["response"]["status_code"]) == ("other", 404)

    play(made, scene)


@pytest.mark.parametrize(
    ("body", "num_choices"),
    [
        ({"input": "abc"}, 1),
        ({"input": [1, 2, 3]}, 1),
        ({"input": ["a", "b"], "n": 7, "prompt": ["a"] * 9}, 2),
        ({"input": [[1], [2], [3]]}, 3),
        ({"input": ["a"] * 8}, 8),
        ({"input": []}, 1),
        ({"input": 7}, 1),
        ({}, 1),
    ],
)
def test_texts_are_counted_as_the_route_reads_them(tmp_path, body, num_choices):
    (tmp_path / "in.jsonl").write_text(line("a", **body))
    [request] = asyncio.run(read_input(tmp_path / "in.jsonl", 1000, EMBEDDINGS))
    assert isinstance(request, BatchLine)
    assert request.num_choices == num_choices


def test_the_input_of_another_route_is_no_list_of_texts(tmp_path):
    request = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"input": ["a"] * 9}}
    (tmp_path / "in.jsonl").write_text(json.dumps(request))
    [other] = asyncio.run(read_input(tmp_path / "in.jsonl", 1000))
    assert isinstance(other, BatchLine)
    [refused] = asyncio.run(read_input(tmp_path / "in.jsonl", 1000, EMBEDDINGS))
    assert isinstance(refused, InvalidLine)
    assert refused.message.startswith("url: /v1/embeddings is expected")


def test_an_embedding_of_a_batch_is_admitted_while_nobody_waits_and_has_every_position_once():
    """Prompts in chunks; the queue has room for one request, and those of the batch are not counted."""

    async def scene(made: Engine) -> None:
        for name in ("first", "second"):
            embedding = replace(made.submission(name, tuple(range(1, 41)), 0), pooling="mean")
            made.engine.submit(replace(embedding, service_class=ServiceClass.BATCH))
        made.engine.submit(made.submission("interactive", (9,), 4))
        await made.engine.start()
        positions: dict[str, list[int]] = {"first": [], "second": []}
        num_left = 3
        async with asyncio.timeout(60):
            while num_left:
                output = await made.outputs.get()
                if output.pooled is not None:
                    positions[output.request_id] += map(int, array("f", output.pooled))
                num_left -= output.finish_reason is not None
        assert positions == {"first": list(range(40)), "second": list(range(40))}
        admitted = [entry.request.request_id for _, batch in made.batches for entry in batch.requests if entry.admitted]
        assert admitted == ["interactive", "first", "second"]

    play_engine(
        lambda: Engine(topology("a"), EngineConfig(max_batch_size=1, token_budget=16, max_queued_requests=1)), scene
    )
