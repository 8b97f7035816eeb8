"""The requests in a batch's input, and the errors of lines that are none."""

from __future__ import annotations

import asyncio
import json

import openai
import pytest
from orca_master.batches.input_lines import BatchLine, InvalidLine, choices_of
from support.batches import created, ended, line, lines_of, play, read_input, servers, upload


def test_invalid_lines_become_error_lines(tmp_path):
    bad = [
        "{",
        "7",
        "[" * 5000,
        json.dumps({"method": "POST"}),
        line(""),
        line("a", "/v1/responses"),
        line("stream", stream=True),
        line("same"),
        line("same"),
        json.dumps({"custom_id": "get", "method": "GET", "url": "/v1/completions", "body": {}}),
        json.dumps({"custom_id": "list", "method": "POST", "url": "/v1/completions", "body": []}),
    ]

    async def scene(client: openai.AsyncOpenAI) -> None:
        text = "\n".join(entry.rstrip("\n") for entry in bad).encode() + b"\n\xff\xfe\n" + line("last").encode()
        batch = await created(client, await upload(client, text))
        done = await ended(client, batch.id)
        assert (done.status, done.request_counts.completed, done.request_counts.failed) == ("completed", 2, 11)
        assert [entry["custom_id"] for entry in await lines_of(client, done.output_file_id)] == ["same", "last"]
        errors = await lines_of(client, done.error_file_id)
        assert all(entry["response"] is None and entry["error"]["code"] == "invalid_line" for entry in errors)
        messages = [(entry["custom_id"], entry["error"]["message"].partition(":")[0]) for entry in errors]
        assert messages == [
            (None, "the line is not valid JSON"),
            (None, "an object with custom_id, method, url and body is expected"),
            (None, "the line is not valid JSON"),
            (None, "custom_id"),
            (None, "custom_id"),
            ("a", "url"),
            ("stream", "body.stream"),
            ("same", "custom_id"),
            ("get", "method"),
            ("list", "body"),
            (None, "the line is not valid JSON"),
        ]

    play(servers(tmp_path)(concurrency=1), scene)


def test_a_line_beyond_a_limit_that_became_smaller_is_an_error_and_not_kept(tmp_path):
    """The option may have changed since the file came."""
    good = json.dumps({"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {}})
    path = tmp_path / "lines.jsonl"
    path.write_text(f"{'x' * 5_000_000}\n{good}\n{'y' * 3_000_000}")
    first, second, third = asyncio.run(read_input(path, 1000))
    assert isinstance(first, InvalidLine)
    assert "exceeds 1000 bytes (--max-batch-line-bytes)" in first.message
    assert second == BatchLine(1, "a", b"{}")
    assert isinstance(third, InvalidLine)


@pytest.mark.parametrize(
    ("body", "count"),
    [
        ({}, 1),
        ({"prompt": "abc"}, 1),
        ({"prompt": [1, 2, 3]}, 1),
        ({"prompt": ["a", "b"], "n": 3}, 6),
        ({"prompt": [[1], [2]], "best_of": 4, "n": 2}, 8),
        ({"n": "5"}, 5),
        ({"n": 5.0}, 5),
        ({"n": None, "prompt": []}, 1),
        ({"n": "x", "best_of": float("inf")}, 1),
        ({"n": -3}, 1),
    ],
)
def test_choices_are_counted_as_the_routes_read_them(body, count):
    assert choices_of(body) == count


@pytest.mark.parametrize(("store", "sent"), [({}, False), ({"store": None}, False), ({"store": True}, True)])
def test_a_response_of_a_batch_is_stored_only_on_request(tmp_path, store, sent):
    path = tmp_path / "lines.jsonl"
    body = {"input": "x"} | store
    path.write_text(json.dumps({"custom_id": "a", "method": "POST", "url": "/v1/responses", "body": body}))
    [request] = asyncio.run(read_input(path, 1000, "/v1/responses"))
    assert isinstance(request, BatchLine)
    assert json.loads(request.body) == {"input": "x", "store": sent}
