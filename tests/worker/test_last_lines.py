"""The standard error of a rank is copied, and its last lines are kept."""

from __future__ import annotations

import asyncio
import errno
import io
import sys
from collections import deque

from orca_worker.last_lines import LAST_LINES, copy_lines


def test_the_last_lines_are_kept_and_a_line_that_is_too_long_is_dropped(capsys):
    async def run() -> list[str]:
        stream = asyncio.StreamReader(limit=64)
        stream.feed_data(b"".join(b"line %d\n" % number for number in range(9)))
        stream.feed_data(b"x" * 200 + b"\nlast\n")
        stream.feed_eof()
        last = deque[str](maxlen=LAST_LINES)
        await copy_lines(stream, last)
        return list(last)

    last = asyncio.run(run())
    assert last[-2:] == ["line 8", "last"]
    assert len(last) == LAST_LINES
    assert capsys.readouterr().err.splitlines()[0] == "line 0"


class Full(io.StringIO):
    """A file on a full disk."""

    def flush(self) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")


def test_the_last_lines_are_read_and_kept_while_they_cannot_be_copied(monkeypatch):
    """A rank would block on a full pipe, and its end would have no explanation."""

    async def run() -> list[str]:
        stream = asyncio.StreamReader()
        stream.feed_data(b"".join(b"line %d\n" % number for number in range(9)))
        stream.feed_eof()
        last = deque[str](maxlen=LAST_LINES)
        await copy_lines(stream, last)
        return list(last)

    with monkeypatch.context() as patched:
        patched.setattr(sys, "stderr", Full())
        last = asyncio.run(run())
    assert last == [f"line {number}" for number in range(4, 9)]
