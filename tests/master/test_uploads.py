"""Counts and limits of lines of a file that comes in pieces of any size."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from orca_master.batches.config import BatchConfig
from orca_master.batches.upload import LineCounter
from orca_master.errors import RequestError
from support.batches import read_input

CONFIG = BatchConfig(Path(), max_lines=3, max_line_bytes=4)


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
    assert [line.number for line in asyncio.run(read_input(path, 4))] == list(range(len(lines)))


def test_limits_name_their_options():
    with pytest.raises(RequestError, match=r"more than 3 lines .--max-batch-lines"):
        LineCounter(CONFIG).feed(b"1\n2\n3\n4\n")
    with pytest.raises(RequestError, match="line 3 exceeds 4 bytes"):
        LineCounter(CONFIG).feed(b"1\n\n22222")
