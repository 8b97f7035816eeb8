"""Batches of a whole server: a restarted master continues them, and they keep interactive requests from nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections import Counter

import httpx
import openai
import pytest
from support.checkpoints import with_tokenizer
from support.served import ORCA, eventually, serve

NAME = "llama-head80-untied"
COUNT = 30


def body_of(number: int) -> dict:
    drawn = {"model": NAME, "max_tokens": 40, "seed": number, "temperature": number % 2, "ignore_eos": True}
    return drawn | {"prompt": [1 + number, 2, 3]}


def lines(count: int) -> bytes:
    return b"".join(
        json.dumps(
            {"custom_id": f"{number}", "method": "POST", "url": "/v1/completions", "body": body_of(number)}
        ).encode() + b"\n"
        for number in range(count)
    )  # fmt: skip


def begin(client: openai.OpenAI, count: int) -> str:
    file = client.files.create(file=("in.jsonl", lines(count)), purpose="batch")
    return client.batches.create(input_file_id=file.id, endpoint="/v1/completions", completion_window="24h").id


def client_of(url: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key="-")


@pytest.mark.long
def test_a_killed_and_a_stopped_master_continue_a_batch(checkpoint, tmp_path):
    """The master is killed, its successor is stopped by SIGTERM, and the third one ends the batch."""
    model = with_tokenizer(checkpoint(NAME), tmp_path)
    folder = tmp_path / "batches"
    options = ("--served-model-name", NAME, "--dtype", "float32", "--batch-directory", str(folder))
    options += ("--batch-concurrency", "2")

    def num_answers() -> int:
        return sum(path.read_bytes().count(b'"status_code": 200') for path in (folder / "files").glob("*.jsonl"))

    with serve(model, *options) as served:
        client = client_of(served.url)
        batch_id = begin(client, COUNT)
        assert eventually(lambda: num_answers() >= 3)
        os.kill(served.master, signal.SIGKILL)
        assert eventually(lambda: any("1 batches are continued" in line for line in served.log))
        first = num_answers()
        assert eventually(lambda: num_answers() >= first + 3)
        assert served.stop() == 0
    assert num_answers() < COUNT
    with serve(model, *options) as served:
        client = client_of(served.url)
        assert eventually(lambda: client.batches.retrieve(batch_id).status == "completed")
        done = client.batches.retrieve(batch_id)
        assert done.request_counts is not None
        assert (done.request_counts.completed, done.request_counts.failed) == (COUNT, 0)
        assert done.output_file_id is not None
        answers = [json.loads(line) for line in client.files.content(done.output_file_id).text.splitlines()]
        assert Counter(answer["custom_id"] for answer in answers) == {f"{number}": 1 for number in range(COUNT)}
        for answer in answers:
            body = body_of(int(answer["custom_id"]))
            alone = httpx.post(f"{served.url}/v1/completions", json=body, timeout=60).json()
            assert answer["response"]["body"]["choices"] == alone["choices"]


@pytest.mark.long
def test_lines_that_wait_take_no_place_of_the_queue(checkpoint, tmp_path):
    """One request runs at a time and one may wait: lines of a batch, eight at a time, keep nobody out."""
    model = with_tokenizer(checkpoint(NAME), tmp_path)
    options = ("--served-model-name", NAME, "--dtype", "float32", "--batch-directory", str(tmp_path / "batches"))
    with serve(model, *options, "--max-batch-size", "1", "--max-queue-depth", "1") as served:
        client = client_of(served.url)
        batch_id = begin(client, 12)
        for number in range(3):
            answer = httpx.post(f"{served.url}/v1/completions", json=body_of(100 + number), timeout=60)
            assert answer.status_code == 200
        assert eventually(lambda: client.batches.retrieve(batch_id).status == "completed")


@pytest.mark.long
def test_embeddings_of_batches_are_those_of_the_route(checkpoint, tmp_path):
    """A file of embeddings as a batch of the server, and sent by `orca batch`."""
    bodies = {
        "text": {"input": "Once upon a time"},
        "texts": {"input": ["Once", "upon a time", "x" * 200], "encoding_format": "base64"},
        "ids": {"input": [[1, 2, 3], [4]], "model": NAME},
    }
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    lines = [
        {"custom_id": name, "method": "POST", "url": "/v1/embeddings", "body": body} for name, body in bodies.items()
    ]
    source.write_text("".join(json.dumps(line) + "\n" for line in lines))
    model = with_tokenizer(checkpoint(NAME), tmp_path)
    options = ("--served-model-name", NAME, "--dtype", "float32", "--batch-directory", str(tmp_path / "batches"))
    with serve(model, *options, "--deterministic", "on") as served:
        client = client_of(served.url)
        file = client.files.create(file=source, purpose="batch")
        batch = client.batches.create(input_file_id=file.id, endpoint="/v1/embeddings", completion_window="24h")
        assert eventually(lambda: client.batches.retrieve(batch.id).status == "completed")
        output = client.batches.retrieve(batch.id).output_file_id
        assert output is not None
        command = [*ORCA, "batch", str(source), str(target), "--url", served.url, "--no-progress"]
        subprocess.run(command, check=True, timeout=120, stdout=subprocess.DEVNULL)
        direct = {
            name: httpx.post(f"{served.url}/v1/embeddings", json=body, timeout=60).json()
            for name, body in bodies.items()
        }
        for text in (client.files.content(output).text, target.read_text()):
            answers = [json.loads(line) for line in text.splitlines()]
            assert {answer["custom_id"]: answer["response"]["body"] for answer in answers} == direct


def test_a_folder_of_batches_and_api_processes_exclude_each_other(checkpoint, tmp_path):
    command = [*ORCA, "serve", str(checkpoint(NAME)), "--batch-directory", str(tmp_path), "--api-processes", "2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "--batch-directory: does not work with --api-processes yet, remove one of them" in done.stderr
    assert list(tmp_path.iterdir()) == []
