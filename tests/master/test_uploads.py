"""Counts and limits of lines of a file that comes in pieces of any size, and the same lines when they are read."""

from __future__ import annotations

import asyncio
import contextlib
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from orca_master.batches.config import BatchConfig
from orca_master.batches.disk_threads import DiskThreads
from orca_master.batches.input_lines import BatchLine, InputLines, InvalidLine, choices_of
from orca_master.batches.upload import LineCounter
from orca_master.errors import RequestError

CONFIG = BatchConfig(Path(), max_lines=3, max_line_bytes=4)


async def read(path: Path, max_bytes: int, endpoint: str = "/v1/completions") -> list[BatchLine | InvalidLine]:
    with InputLines(path, endpoint, max_bytes, 8, DiskThreads()) as lines:
        found = []
        while (line := await lines.next()) is not None:
            found.append(line)
        return found


@given(st.lists(st.sampled_from([b"\n", b"a", b" ", b"\r\n", b"bcd", b"\t"]), max_size=14), st.integers(1, 5))
def test_a_file_is_counted_as_it_is_read(tmp_path_factory, parts, size):
    data = b"".join(parts)
    lines = [line for line in data.split(b"\n") if line.strip()]
    num_lines = data.count(b"\n") + (not data.endswith(b"\n") and bool(data))  # blank ones, too
    is_valid = all(len(line) <= 4 for line in data.split(b"\n")) and num_lines <= 3
    counter = LineCounter(CONFIG)
    with contextlib.nullcontext() if is_valid else pytest.raises(RequestError, match="--max-batch-line"):
        for start in range(0, len(data), size):
            counter.feed(data[start : start + size])
        assert counter.end() == len(lines)
    if not is_valid:
        return
    path = tmp_path_factory.getbasetemp() / "lines.jsonl"
    path.write_bytes(data)
    assert [line.number for line in asyncio.run(read(path, 4))] == list(range(len(lines)))


def test_a_line_beyond_a_limit_that_became_smaller_is_an_error_and_not_kept(tmp_path):
    """The option may have changed since the file came."""
    good = json.dumps({"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {}})
    path = tmp_path / "lines.jsonl"
    path.write_text(f"{'x' * 5_000_000}\n{good}\n{'y' * 3_000_000}")
    first, second, third = asyncio.run(read(path, 1000))
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
    [line] = asyncio.run(read(path, 1000, "/v1/responses"))
    assert isinstance(line, BatchLine)
    assert json.loads(line.body) == {"input": "x", "store": sent}


def test_limits_name_their_options():
    with pytest.raises(RequestError, match=r"more than 3 lines .--max-batch-lines"):
        LineCounter(CONFIG).feed(b"1\n2\n3\n4\n")
    with pytest.raises(RequestError, match="line 3 exceeds 4 bytes"):
        LineCounter(CONFIG).feed(b"1\n\n22222")
