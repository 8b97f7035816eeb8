"""The standard error of a rank is copied, and its last lines, which explain the end of the process, are kept."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections import deque
from typing import IO

LAST_LINES = 5


async def copy_pipe(pipe: IO[bytes] | None, last: deque[str]) -> None:
    """Copy the lines of a pipe to this process's standard error and into `last`; close the pipe at its end."""
    stream = asyncio.StreamReader()
    connecting = asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(stream), pipe)
    transport, _ = await connecting
    with contextlib.closing(transport):
        await copy_lines(stream, last)


async def copy_lines(stream: asyncio.StreamReader, last: deque[str]) -> None:
    """Copy the lines of `stream` to this process's standard error and into `last`, until the stream ends."""
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
