"""`copy_lines`: the standard error of a rank, whose last lines explain the end of the process."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections import deque

LAST_LINES = 5


async def copy_lines(stream: asyncio.StreamReader | None, last: deque[str]) -> None:
    """Copy the lines of `stream` to this process's standard error and into `last`, until the stream ends."""
    assert stream is not None
    while True:
        try:
            line = await stream.readline()
        except ValueError:  # drop a line longer than the buffer: a full pipe would block the rank
            continue
        if not line:
            return
        text = line.decode(errors="replace").rstrip()
        last.append(text)
        with contextlib.suppress(OSError):  # a full disk, or a reader that has ended: as logging, go on without
            print(text, file=sys.stderr, flush=True)
