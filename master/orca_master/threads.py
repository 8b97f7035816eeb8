"""Threads and child processes at a limit of the operating system, of threads, processes or memory.

A thread that is started for a request fails there with RuntimeError. So the threads of a pool are started with the
pool, before requests are served; and what cannot be started for a request is an error that the caller may retry.
"""

from __future__ import annotations

import asyncio
import asyncio.subprocess
import contextlib
import errno
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

from orca_master.errors import EngineUnavailableError

STREAM_BYTES = 1 << 16
"""As asyncio's own: a longer output of a child process waits in its pipe."""
KILL_SECONDS = 1.0
"""Longest wait for the end of a child process that has just begun and is killed."""


def started_threads(count: int, name: str) -> ThreadPoolExecutor:
    """Return a pool of `count` threads, all of which run; raise EngineUnavailableError if one cannot be started."""
    threads = ThreadPoolExecutor(count, thread_name_prefix=name)
    begin = threading.Event()
    try:
        for _ in range(count):
            threads.submit(begin.wait)  # no thread is idle meanwhile, so each call starts one
    except RuntimeError as error:
        threads.shutdown(wait=False, cancel_futures=True)
        raise _unavailable(error) from error
    finally:
        begin.set()
    return threads


def start_thread(thread: threading.Thread) -> None:
    """Start a thread; raise EngineUnavailableError if it cannot be started."""
    try:
        thread.start()
    except RuntimeError as error:
        raise _unavailable(error) from error


async def start_process(
    *command: str, stdin: int | None = None, stdout: int | None = None, stderr: int | None = None, **options: Any
) -> asyncio.subprocess.Process:
    """Start a child process as asyncio.create_subprocess_exec does; raise OSError at every limit.

    Each standard stream is the caller's own unless it is given: a pipe that nobody reads would hold the process.
    Before Python 3.12 asyncio starts the process, and then a thread that waits for its end. If that thread cannot be
    started, the process is killed: nobody would know it.
    """
    loop = asyncio.get_running_loop()
    protocol = _ChildProtocol(STREAM_BYTES, loop)
    try:
        transport, _ = await loop.subprocess_exec(
            lambda: protocol, *command, stdin=stdin, stdout=stdout, stderr=stderr, **options
        )
    except RuntimeError as error:
        protocol.is_abandoned = True
        raise OSError(errno.EAGAIN, str(error)) from error
    return asyncio.subprocess.Process(transport, protocol, loop)


def _unavailable(error: RuntimeError) -> EngineUnavailableError:
    return EngineUnavailableError(f"{error}: a limit of threads, processes or memory is reached")


class _ChildProtocol(asyncio.subprocess.SubprocessStreamProtocol):
    is_abandoned = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Part of asyncio.SubprocessProtocol: called also after the failure of asyncio's thread."""
        super().connection_made(transport)
        if self.is_abandoned:
            transport.close()  # kills the process
            process = cast("subprocess.Popen[bytes]", transport.get_extra_info("subprocess"))
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(KILL_SECONDS)
